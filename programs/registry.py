"""Names of the programs that come with Detent. Reading this file imports no program."""

PROGRAMS: dict[str, str] = {
    "attention": "detent.programs.attention:attention",
    "fa3-sglang-stock": "detent.programs.fa3_sglang_stock:fa3_sglang_stock",
    "fa3-upstream-stock": "detent.programs.fa3_upstream_stock:fa3_upstream_stock",
    "fa3-vllm-stock": "detent.programs.fa3_vllm_stock:fa3_vllm_stock",
    "moe": "detent.programs.moe:moe",
    "moe-sglang-stock": "detent.programs.moe_sglang_stock:moe_sglang_stock",
    "moe-vllm-stock": "detent.programs.moe_vllm_stock:moe_vllm_stock",
}
