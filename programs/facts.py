"""Deployment facts that the programs share. ``class Gpu`` reads section ``[gpu]`` of a deployment, and so on.

Facts are primary: whole-model shapes under the names of the model's ``config.json``, and degrees of parallelism.
What one rank has is worked out in the programs.
"""

from __future__ import annotations

from detent.lang import Table, record


@record
class Model:
    """The transformer, before it is spread over GPUs."""

    name: str
    dtype: str  # of weights and activations: "bf16"
    hidden_size: int
    intermediate_size: int  # of the dense MLP
    vocab_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int  # of queries and keys
    head_dim_v: int  # of values
    causal: bool
    window_left: int  # tokens a query sees before its own, -1: all
    window_right: int  # and after its own, -1: all
    softcap: float  # of attention scores, 0.0: none
    norm_plus_one: bool | None  # RMSNorms multiply by 1 + weight, as Gemma's do; absent: by the weight


@record
class Moe:
    """The expert layers. A dense model's deployment has no such section."""

    num_experts: int
    num_experts_per_tok: int
    moe_intermediate_size: int
    hidden_act: str
    quantization: str  # of the experts' weights: "none", "fp8_w8a8", "int8_w8a8", "int8_w8a16", "int4_w4a16"
    apply_router_weight_on_input: bool
    block_n: int | None  # output columns of the weights that share a scale; absent: all of a tensor or of a column
    block_k: int | None  # and input columns
    table: Table | None  # the engine's tuned configurations by token count; absent: its default rule
    down_table: Table | None  # SGLang: those of the second GEMM; absent: as the first


@record
class Parallel:
    """How the model is spread over GPUs."""

    tensor_parallel: int
    expert_parallel: bool  # whole experts on each rank of the tensor-parallel group instead of slices of all


@record
class Gpu:
    """One GPU."""

    name: str
    arch: int  # compute capability without its dot: 90
    num_sm: int
    shared_memory: int  # bytes a thread block can have


@record
class Engine:
    """The engine and those of its settings that its selections read."""

    name: str  # "vllm" or "sglang"
    version: str
    deterministic: bool  # VLLM_BATCH_INVARIANT or --enable-deterministic-inference
    page_size: int  # tokens in a page of the KV cache
    kv_cache_dtype: str  # "bf16" or "e4m3"
    full_graphs: bool  # decode batches replay whole CUDA graphs
    max_capture_size: int  # tokens in the largest captured graph
    graph_splits: int  # attention splits asked for where a graph may replay, 0: the heuristic's
    cascade_attention: bool | None  # vLLM: a prefix that all requests share is attended once; off where absent
    fused_moe_sum_all_reduce: bool  # SGLang: experts' sum and all-reduce in one kernel, with atomics


@record
class Machine:
    """The processors of a deployment that runs without a GPU."""

    name: str
    cores: int  # that the engine computes with


@record
class Embedded:
    """The embedded engine: its pages and what was measured for it. A row counts up to its key, the last one also
    beyond."""

    page_size: int  # tokens in a page of the KV cache
    gemm: Table  # by rows of the activations: for every layer 1 where packed weights are faster, else 0
    attention: Table  # by KV tokens a request: requests a core from which on splits are faster
    moe: Table  # by tokens: 1 where packed weights are faster, else 0
    norm: Table  # by rows: 1 where torch's own norm is faster, else 0


@record
class AllReduce:
    """All-reduces of the tensor-parallel group. A deployment on one GPU has no such section."""

    custom: bool  # the engine's own kernels run: on, GPUs of one node with access to each other's memory
    max_bytes: int  # largest message of those kernels, in vLLM the first that is too large
    nvlink: bool  # between every two GPUs
    multicast: bool  # NVSwitch adds and copies: multicast addresses can be had
    symm_mem: bool  # vLLM: PyTorch's symmetric memory
    nccl_symm_mem: bool  # vLLM: NCCL on symmetric buffers
    flashinfer: bool  # vLLM: FlashInfer's all-reduce
    fused_rms_norm: bool  # all-reduce and the RMSNorm behind it in one kernel, up to some size
    workspace_bytes: int  # that Detent's kernels reserve for a message; longer ones are reduced in pieces


@record
class Sampling:
    """How next tokens are drawn."""

    backend: str  # "flashinfer" or "pytorch": what top-k and top-p are left to where the batch allows it
    hashed_noise: bool  # vLLM: model runner V2, whose noise is a hash of seed, position and token


@record
class Limits:
    """What the scheduler keeps to."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_context: int  # tokens of the longest request, prompt and output
