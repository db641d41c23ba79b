"""Names of the programs that come with Detent. Reading this file imports no program."""

PROGRAMS: dict[str, str] = {
    "allreduce": "detent.programs.allreduce:allreduce",
    "allreduce-sglang-stock": "detent.programs.allreduce_sglang_stock:allreduce_sglang_stock",
    "allreduce-vllm-stock": "detent.programs.allreduce_vllm_stock:allreduce_vllm_stock",
    "attention": "detent.programs.attention:attention",
    "attention-cpu": "detent.programs.attention_cpu:attention_cpu",
    "fa3-sglang-stock": "detent.programs.fa3_sglang_stock:fa3_sglang_stock",
    "fa3-upstream-stock": "detent.programs.fa3_upstream_stock:fa3_upstream_stock",
    "fa3-vllm-stock": "detent.programs.fa3_vllm_stock:fa3_vllm_stock",
    "gemm": "detent.programs.gemm:gemm",
    "gemm-cpu": "detent.programs.gemm_cpu:gemm_cpu",
    "moe": "detent.programs.moe:moe",
    "moe-cpu": "detent.programs.moe_cpu:moe_cpu",
    "moe-sglang-stock": "detent.programs.moe_sglang_stock:moe_sglang_stock",
    "moe-vllm-stock": "detent.programs.moe_vllm_stock:moe_vllm_stock",
    "norm": "detent.programs.norm:norm",
    "norm-cpu": "detent.programs.norm_cpu:norm_cpu",
    "rms-norm-vllm-stock": "detent.programs.rms_norm_vllm_stock:rms_norm_vllm_stock",
    "sampler": "detent.programs.sampler:sampler",
    "sampler-sglang-stock": "detent.programs.sampler_sglang_stock:sampler_sglang_stock",
    "sampler-vllm-stock": "detent.programs.sampler_vllm_stock:sampler_vllm_stock",
}
