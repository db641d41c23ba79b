"""Names of the programs that come with Detent. Reading this file imports no program."""

PROGRAMS: dict[str, str] = {
    "attention": "detent.programs.attention:attention",
    "fa3-vllm-stock": "detent.programs.fa3_vllm_stock:fa3_vllm_stock",
    "moe": "detent.programs.moe:moe",
    "moe-vllm-stock": "detent.programs.moe_vllm_stock:moe_vllm_stock",
}
