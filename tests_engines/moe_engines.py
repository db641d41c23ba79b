"""vLLM's and SGLang's fused-MoE selection, called as it is installed, without a GPU."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from engines import engine, stand

Config = dict[str, Any]


class Hopper:
    """vLLM's platform object where the GPU is an H100."""

    is_rocm = staticmethod(lambda: False)
    is_cuda = staticmethod(lambda: True)
    is_device_capability = staticmethod(lambda capability: capability == 90)
    simple_compile_backend = "eager"


# ---- vLLM ------------------------------------------------------------------------------------------------------

FUSED_MOE = "vllm.model_executor.layers.fused_moe"
stand("vllm.platforms", current_platform=Hopper)
stand(FUSED_MOE, get_config=lambda: None)
vllm_envs = engine("vllm.envs")
vllm = engine(f"{FUSED_MOE}.fused_moe", f"{FUSED_MOE}.utils", "vllm.envs")
flydsl = engine(f"{FUSED_MOE}.fused_flydsl_moe")
vllm_device = ""
vllm.get_device_name_as_file_name = flydsl.get_device_name_as_file_name = lambda: vllm_device
vllm.moe_align_block_size = lambda *args, **kwargs: ("sorted",)
VLLM_TABLES = Path(vllm.__file__).parent / "configs"


def vllm_config(m: int, experts: int, width: int, dtype: str | None, block: list[int] | None,
                device: str | None = None) -> Config:
    """vLLM's own ``try_get_optimal_moe_config``; a new device forgets the tables of the one before."""
    global vllm_device
    if device is not None and device != vllm_device:
        vllm_device = device
        vllm.get_moe_configs.cache_clear()
    return vllm.try_get_optimal_moe_config((experts, 2 * width, 64), (experts, 64, width), 8, dtype, m, block)


def vllm_naive(m: int, top_k: int, experts: int, mapped: bool, quantization: str, block: list[int] | None) -> bool:
    """Whether vLLM's own ``_prepare_expert_assignment`` leaves the pairs unsorted."""
    found = vllm._prepare_expert_assignment(
        torch.empty((m, top_k), device="meta", dtype=torch.int32), {"BLOCK_SIZE_M": 16}, m, top_k, experts,
        torch.empty(0) if mapped else None, use_int8_w8a16=quantization == "int8_w8a16",
        use_int4_w4a16=quantization == "int4_w4a16", block_shape=block)
    return found[0] is None


def vllm_swap(block_m: int, block_n: int) -> bool:
    """vLLM's own ``enable_swap_ab``, which its launcher asks for fp8 operands."""
    return bool(vllm.enable_swap_ab(block_m, block_n))


# ---- SGLang ----------------------------------------------------------------------------------------------------

TRITON_UTILS = "sglang.srt.layers.moe.moe_runner.triton_utils"
deterministic = False
never = SimpleNamespace(get=lambda: False)
get_exec = lambda: SimpleNamespace(  # noqa: E731
    deterministic=SimpleNamespace(enable_deterministic_inference=deterministic),
    moe=SimpleNamespace(enable_fused_moe_sum_all_reduce=False))
stand("sglang.srt.utils", is_cuda=lambda: True, is_hip=lambda: False, is_xpu=lambda: False, is_musa=lambda: False,
      is_cpu=lambda: False, cpu_has_amx_support=lambda: False, use_intel_xpu_backend=lambda: False,
      get_bool_env_var=lambda name: False, is_sm90_supported=lambda: True)
stand("sglang.srt.environ", envs=SimpleNamespace(SGLANG_EXPERIMENTAL_LORA_OPTI=never))
stand("triton", __version__="3.6.0", cdiv=lambda a, b: -(-a // b))
stand(TRITON_UTILS, get_config=lambda: None)
sglang = engine(f"{TRITON_UTILS}.fused_moe_triton_config")
sglang.get_exec = get_exec
sglang.logger = stand("sglang.quiet").logger  # it writes of every table that it does not find
sglang_align = engine(f"{TRITON_UTILS}.moe_align_block_size")
sglang_align.sgl_moe_align_block_size = lambda *args: None
sglang_moe = engine(f"{TRITON_UTILS}.fused_moe")
sglang_moe.get_exec = get_exec
sglang_moe.is_batch_invariant_mode_enabled = lambda: deterministic
SGLANG_TABLES = Path(sglang.__file__).parent / "configs"
sglang_device = ""
sglang.get_device_name = lambda: sglang_device


def sglang_config(m: int, experts: int, width: int, dtype: str | None, block: list[int] | None,
                  per_channel: bool = False, device: str | None = None,
                  triton: str = "3.6.0") -> tuple[Config, Config | None]:
    """SGLang's own ``try_get_optimal_moe_config``, the second GEMM's configuration too."""
    global sglang_device
    if device is not None and (device, triton) != (sglang_device, sglang.triton.__version__):
        sglang_device, sglang.triton.__version__ = device, triton
        sglang.get_moe_configs.cache_clear()
    up, (down, _) = sglang.try_get_optimal_moe_config(
        (experts, 2 * width, 64), (experts, 64, width), 8, dtype, m, block_shape=block, per_channel_quant=per_channel,
        return_down_config=True)
    return up, down


def sglang_short(m: int, top_k: int, experts: int, block_m: int) -> bool:
    """Whether SGLang's own ``moe_align_block_size`` makes its index short."""
    ids = torch.empty((m, top_k), device="meta", dtype=torch.int32)
    index, _, _ = sglang_align.moe_align_block_size(ids, block_m, experts)
    sizes = {m * top_k * block_m: True, m * top_k + (experts + 1) * (block_m - 1): False}
    assert len(sizes) == 2
    return sizes[index.numel()]


class Combine:
    """Watches which of its ways SGLang's own ``_fused_moe_kernel_sequence`` adds a token's experts up."""

    def __init__(self) -> None:
        self.seen = "none"
        sglang_moe.invoke_fused_moe_kernel = sglang_moe.silu_and_mul = lambda *args, **kwargs: None
        sglang_moe.moe_sum_reduce = lambda *args: self.note("reduce")
        sglang_moe.moe_sum_reduce_torch_compile = lambda *args: self.note("compiled")
        # The module reaches PyTorch by its global name; only `add` is watched.
        watched = SimpleNamespace(**{name: getattr(torch, name) for name in ("empty", "bfloat16", "float16")})
        watched.add = self.add
        sglang_moe.torch = watched
        sglang_moe.tl = SimpleNamespace(bfloat16=None, float16=None)

    def note(self, what: str) -> None:
        self.seen = what

    def add(self, left: Any, right: Any, out: Any) -> Any:
        self.note("add")
        return out

    def __call__(self, m: int, top_k: int) -> str:
        def tensor(*shape: int) -> torch.Tensor:
            return torch.empty(shape, device="meta", dtype=torch.bfloat16)

        self.seen = "none"
        pairs = tensor(m, top_k)
        sglang_moe._fused_moe_kernel_sequence(
            tensor(m, 8), tensor(4, 16, 8), tensor(4, 8, 8), pairs, pairs, pairs, pairs, pairs, {"BLOCK_SIZE_M": 16},
            None, False, b1=None, b2=None, use_fp8_w8a8=False, use_int8_w8a8=False, use_int8_w8a16=False,
            use_int4_w4a16=False, per_channel_quant=False, w1_scale=None, w2_scale=None, w1_zp=None, w2_zp=None,
            a1_scale=None, a2_scale=None,
            block_shape=None, activation="silu", is_gated=True, no_combine=False, inplace=True,
            apply_router_weight_on_input=False, routed_scaling_factor=None, gemm1_alpha=None, gemm1_limit=None,
            filter_expert=False)
        return self.seen


KERNELS = "sglang.kernels.ops.moe.fused_moe_triton_kernels"
stand("sglang.srt.layers.moe.utils", get_moe_padding_size=lambda aiter: 128)
sglang_kernels = engine(KERNELS)
sglang_kernels.is_batch_invariant_mode_enabled = lambda: deterministic


def sglang_swap(block_m: int, block_n: int) -> bool:
    """SGLang's own ``should_enable_swap_ab``, which its launcher asks for fp8 operands."""
    sglang_kernels.should_enable_swap_ab.cache_clear()
    return bool(sglang_kernels.should_enable_swap_ab(block_m, block_n))


# ---- shipped tables --------------------------------------------------------------------------------------------

NAME = re.compile(r"E=(?P<experts>\d+),N=(?P<width>\d+),device_name=(?P<device>[^,]*?)(,dtype=(?P<dtype>[^,]+?))?"
                  r"(,block_shape=\[(?P<n>\d+), ?(?P<k>\d+)\])?(?P<channel>,per_channel_quant=True)?"
                  r"(?P<flydsl>,backend=flydsl)?(?P<down>_down)?\.json")


def named(path: Path) -> dict[str, Any]:
    """What a table's file name says."""
    found = NAME.fullmatch(path.name)
    assert found, path
    facts = found.groupdict()
    return facts | {"experts": int(facts["experts"]), "width": int(facts["width"]),
                    "block": [int(facts["n"]), int(facts["k"])] if facts["n"] else None,
                    "channel": bool(facts["channel"]), "down": bool(facts["down"]), "flydsl": bool(facts["flydsl"])}
