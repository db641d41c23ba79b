"""FlashAttention-3's tile table on sm_90 (``tile_size_fwd_sm90``): as vLLM 0.26.0 and SGLang 0.5.17 ship it, and as
its authors have it (Dao-AILab/flash-attention 0251105a), which knows no one-warpgroup kernels.

Every function returns ``(kBlockM, kBlockN, MmaPV_is_RS, IntraWGOverlap)``. ``gathered`` means a paged KV cache
read by cp.async gather instead of TMA. ``d`` and ``dv`` are head dims rounded up by :func:`bucket`.
"""

from __future__ import annotations


def bucket(head_dim: int) -> int:
    """The head dim of the kernel that serves ``head_dim``: the next of 64, 96, 128, 192, 256, 512."""
    return next((size for size in (64, 96, 128, 192, 256) if head_dim <= size), 512)


def tile(library: str, head_dim: int, head_dim_v: int, elem_bytes: int, v_colmajor: bool, softcap: bool,
         is_causal: bool, is_local: bool, gathered: bool, one_wg: bool) -> tuple[int, int, bool, bool]:
    """The tile of one kernel. ``library`` is ``vllm``, ``sglang`` or ``upstream``: the three differ."""
    d = bucket(head_dim)
    dv = d if head_dim_v == head_dim else bucket(head_dim_v)
    if library == "upstream":
        if elem_bytes == 2:
            return upstream_16bit(d, dv, is_causal, is_local, gathered)
        return sglang_8bit(d, v_colmajor, softcap, is_local, gathered, False)
    if library == "sglang":
        if elem_bytes == 2:
            return sglang_16bit(d, dv, is_causal, is_local, gathered, one_wg)
        return sglang_8bit(d, v_colmajor, softcap, is_local, gathered, one_wg)
    if elem_bytes == 2:
        return vllm_16bit(d, dv, is_causal, is_local, gathered, one_wg)
    return vllm_8bit(d, is_local, gathered, one_wg)


def vllm_16bit(d: int, dv: int, is_causal: bool, is_local: bool, gathered: bool,
               one_wg: bool) -> tuple[int, int, bool, bool]:
    """vLLM, bf16 and fp16."""
    if d <= 64:
        if dv == 512:
            return 64, 64, False, False
        if dv == 256:
            return 128, 96, True, False
        if one_wg:
            return 64, 192, True, True
        block_n = 128 if is_causal else 160 if is_local or gathered else 192
        return 192, block_n, is_causal or is_local, not is_local
    if d <= 96:
        return 192, (128 if is_local or gathered else 144), False, True
    if d <= 128:
        narrow = is_causal or is_local or gathered
        if one_wg:
            return 64, (128 if narrow else 176), True, True
        return 128, (128 if narrow else 160), True, True
    if d <= 192:
        return 128, (96 if is_local or gathered or dv > 128 else 128), True, True
    return 128, (64 if is_local else 80), True, True


def vllm_8bit(d: int, is_local: bool, gathered: bool, one_wg: bool) -> tuple[int, int, bool, bool]:
    """vLLM, fp8."""
    if one_wg:
        return 64, (128 if d <= 96 else 96), True, True
    if d <= 64:
        return 192, 128, True, True
    if d <= 96:
        return 128, 128, True, True
    if d <= 128:
        return 128, 192, True, True
    if d <= 192:
        return 128, 96, True, True
    return 128, (64 if is_local else 128), True, not gathered


def sglang_16bit(d: int, dv: int, is_causal: bool, is_local: bool, gathered: bool,
                 one_wg: bool) -> tuple[int, int, bool, bool]:
    """SGLang, bf16 and fp16."""
    if d <= 64:
        if dv == 512:
            return 64, 64, False, False
        if dv == 256:
            return 128, 96, True, False
        if one_wg:
            return 64, 192, True, True
        from_registers = is_causal or (gathered and not is_local)
        return 192, (128 if from_registers else 192), from_registers, True
    if d <= 96:
        return 192, (128 if is_local or gathered else 144), False, True
    if d <= 128:
        narrow = is_causal or is_local or gathered
        return (64 if one_wg else 128), (128 if narrow else 176), True, True
    if d <= 192:
        return 128, (96 if is_local or gathered else 128 if dv <= 128 else 112), True, True
    return 128, (64 if is_local else 80), True, True


def upstream_16bit(d: int, dv: int, is_causal: bool, is_local: bool, gathered: bool) -> tuple[int, int, bool, bool]:
    """The authors', bf16 and fp16. SGLang's table is this one but for windows at head dims up to 64."""
    if d <= 64 and dv not in (256, 512):
        narrow = is_causal or is_local or gathered
        return 192, (128 if narrow else 192), narrow, True
    return sglang_16bit(d, dv, is_causal, is_local, gathered, False)


def sglang_8bit(d: int, v_colmajor: bool, softcap: bool, is_local: bool, gathered: bool,
                one_wg: bool) -> tuple[int, int, bool, bool]:
    """SGLang, fp8."""
    if one_wg and d in (64, 128):
        return 64, (128 if d <= 64 else 96), True, True
    if d <= 64:
        return 192, 160, True, True
    if d <= 96:
        return 192, 128, True, True
    if d <= 128:
        return 128, (160 if gathered else 192 if v_colmajor or (softcap and is_local) else 224), True, True
    if d <= 192:
        return 128, (128 if is_local and (gathered or softcap) else 160), True, True
    return 128, (64 if is_local else 128), True, not gathered
