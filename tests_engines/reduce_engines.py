"""vLLM's and SGLang's choice of an all-reduce, made by their own communicators without a group and a GPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from engines import engine, literal, stand

MIB = 1024 * 1024


class Message:
    """What the communicators ask of a tensor: contiguous, on a GPU, ``rows`` of ``hidden`` elements."""

    is_cuda, is_cpu, device = True, False, "cuda:0"

    def __init__(self, rows: int, hidden: int, dtype: torch.dtype) -> None:
        self.shape, self.dtype = (rows, hidden), dtype
        self.nbytes = rows * hidden * dtype.itemsize

    def numel(self) -> int:
        return self.shape[0] * self.shape[1]

    def element_size(self) -> int:
        return self.dtype.itemsize

    def is_contiguous(self) -> bool:
        return True

    def view(self, *shape: Any) -> Message:
        return self

    copy_ = clone = view


class Facts:
    """What the tests set: the size of the group, and what its GPUs and the engine's settings allow."""

    world, rank, deterministic = 2, 0, False
    multicast = nvlink = nccl_symm_mem = False
    chosen = ""


def note(kernel: str) -> Any:
    """A kernel's launch that is only noted."""
    def launch(*args: Any, **kwargs: Any) -> Any:
        Facts.chosen = kernel
        return "out"
    return launch


# ---- vLLM ------------------------------------------------------------------------------------------------------

DEVICES = "vllm.distributed.device_communicators"
CAPABILITY = SimpleNamespace(as_version_str=lambda: "9.0", to_int=lambda: 90)
PLATFORM = SimpleNamespace(
    is_cuda=lambda: True, is_rocm=lambda: False, is_cuda_alike=lambda: True, get_device_capability=lambda: CAPABILITY,
    is_fully_connected=lambda ids: Facts.nvlink, visible_device_id_to_physical_device_id=lambda index: index)
DIST = SimpleNamespace(get_world_size=lambda group=None: Facts.world, get_rank=lambda group=None: Facts.rank,
                       get_backend=lambda group: "gloo", Backend=SimpleNamespace(NCCL="nccl"),
                       all_gather=lambda *args, **kwargs: None)


class Base:
    """vLLM's base class of communicators, without its all-to-all."""

    def __init__(self, cpu_group: Any, device: Any, *others: Any) -> None:
        self.cpu_group, self.device_group, self.device = cpu_group, cpu_group, device
        self.world_size, self.unique_name, self.use_all2all = Facts.world, "tp", False


class Nccl:
    """vLLM's wrapper of NCCL: always there."""

    disabled = False

    def __init__(self, **kwargs: Any) -> None:
        self.world_size = Facts.world
        self.all_reduce = note("nccl")


stand(f"{DEVICES}.pynccl_allocator", is_symmetric_memory_enabled=lambda: Facts.nccl_symm_mem)
stand(f"{DEVICES}.base_device_communicator", DeviceCommunicatorBase=Base)
stand(f"{DEVICES}.pynccl", PyNcclCommunicator=Nccl)
stand("vllm.distributed.utils", is_weak_contiguous=lambda tensor: True)
parallel = stand("vllm.distributed.parallel_state", _ENABLE_CUSTOM_ALL_REDUCE=True,
                 in_the_same_node_as=lambda group, source_rank: [True] * Facts.world)
envs = engine("vllm.envs")
utils = engine(f"{DEVICES}.all_reduce_utils", "vllm.envs")
custom = engine(f"{DEVICES}.custom_all_reduce", f"{DEVICES}.all_reduce_utils", "vllm.envs")
symm_mem = engine(f"{DEVICES}.symm_mem", f"{DEVICES}.all_reduce_utils", "vllm.envs")
flashinfer = engine(f"{DEVICES}.flashinfer_all_reduce")
communicator = engine(f"{DEVICES}.cuda_communicator", f"{DEVICES}.custom_all_reduce", f"{DEVICES}.symm_mem",
                      f"{DEVICES}.flashinfer_all_reduce", f"{DEVICES}.all_reduce_utils", "vllm.envs")
for module in (custom, symm_mem, flashinfer, communicator):
    module.current_platform = PLATFORM
for module in (custom, symm_mem, flashinfer):
    module.dist = DIST
custom.custom_ar = True
custom._can_p2p = lambda rank, world: True
custom.CustomAllreduce.create_shared_buffer = staticmethod(lambda size, group=None, uncached=False: [0] * Facts.world)
custom.CustomAllreduce.custom_all_reduce = note("custom")
custom.CustomAllreduce.close = lambda self: None
custom.ops = SimpleNamespace(meta_size=lambda: 0, init_custom_ar=lambda *args: 0, register_buffer=lambda *args: None)
fi_sizes = literal("vllm.compilation.passes.fusion.allreduce_rms_fusion", "FI_ALLREDUCE_FUSION_MAX_SIZE_MB")
flashinfer.PassConfig = SimpleNamespace(default_fi_allreduce_fusion_max_size_mb=lambda: fi_sizes[90])
flashinfer.fi_ar_available = True
flashinfer.get_fi_ar_workspace = lambda **kwargs: "workspace"
flashinfer.FlashInferAllReduce.all_reduce = note("flashinfer")
communicator.rocm_aiter_ops = SimpleNamespace(is_custom_all_reduce_enabled=lambda: False)
communicator.register_nccl_symmetric_ops = lambda comm: None


class _Buffer:
    def __getitem__(self, key: Any) -> Any:
        return Message(1, 1, torch.bfloat16)


symm_mem.symm_mem_available = True
symm_mem.torch_symm_mem = SimpleNamespace(
    empty=lambda *args, **kwargs: _Buffer(),
    rendezvous=lambda buffer, name: SimpleNamespace(multicast_ptr=int(Facts.multicast)))
symm_mem.torch = SimpleNamespace(
    bfloat16=torch.bfloat16, device=torch.device, empty_like=lambda tensor: Message(1, 1, torch.bfloat16),
    accelerator=SimpleNamespace(set_device_index=lambda device: None),
    ops=SimpleNamespace(symm_mem=SimpleNamespace(multimem_all_reduce_=note("multimem"),
                                                 two_shot_all_reduce_=note("two_shot"))))
communicator.torch = SimpleNamespace(
    ops=SimpleNamespace(vllm=SimpleNamespace(all_reduce_symmetric_with_copy=note("nccl_symm_mem"))))
GROUP = SimpleNamespace(group_name="tp")
META = torch.device("meta", 0)


def vllm_communicator(use_custom: bool, use_symm_mem: bool, use_flashinfer: bool, max_bytes: int | None) -> Any:
    """vLLM's own communicator, made anew; its deterministic mode switches the custom kernels off before that."""
    envs.VLLM_BATCH_INVARIANT = Facts.deterministic
    envs.VLLM_ALLREDUCE_USE_SYMM_MEM, envs.VLLM_ALLREDUCE_USE_FLASHINFER = use_symm_mem, use_flashinfer
    parallel._ENABLE_CUSTOM_ALL_REDUCE = use_custom and not Facts.deterministic
    limit = custom.CustomAllreduce.__init__.__defaults__
    if max_bytes is not None:
        custom.CustomAllreduce.__init__.__defaults__ = (max_bytes, *limit[1:])
    made = communicator.CudaCommunicator(GROUP, META, GROUP, "tp")
    custom.CustomAllreduce.__init__.__defaults__ = limit
    return made


def vllm_choice(made: Any, message: Message) -> str:
    """The backend that vLLM's own ``CudaCommunicator.all_reduce`` launches, of symmetric memory the kernel."""
    Facts.chosen = ""
    assert made.all_reduce(message) is not None
    return Facts.chosen


# ---- SGLang ----------------------------------------------------------------------------------------------------

SGLANG = "sglang.srt.distributed.device_communicators"
piecewise = False
environ = engine("sglang.srt.environ")
sizes = engine(f"{SGLANG}.configs.custom_all_reduce_v2")
sizes.torch = SimpleNamespace(cuda=SimpleNamespace(
    get_device_capability=lambda: (9, 0), get_device_properties=lambda: SimpleNamespace(multi_processor_count=132)))
v2 = engine(f"{SGLANG}.custom_all_reduce_v2", f"{SGLANG}.configs.custom_all_reduce_v2", "sglang.srt.environ")
v2.dist = DIST
v2.is_weak_contiguous = lambda tensor: True
v2.in_the_same_node_as = lambda group, source_rank: [True] * Facts.world
v2.can_use_custom_all_reduce_with_nvlink = lambda **kwargs: Facts.nvlink
v2.AllReduceAlgo = SimpleNamespace(ONE_SHOT_PUSH="one_shot_push", ONE_SHOT_PULL="one_shot_pull",
                                   TWO_SHOT_PULL="two_shot_pull")
capturing = False
v2.is_in_tc_piecewise_cuda_graph = lambda: piecewise
v2.torch = SimpleNamespace(zeros=lambda *args, **kwargs: None, uint64=None,
                           cuda=SimpleNamespace(is_current_stream_capturing=lambda: capturing))
SOURCES = {v2._PullMode.EAGER: "eager", v2._PullMode.MULTICAST: "multicast", v2._PullMode.GRAPH: "graph"}


def _workspace(self: Any) -> None:
    """The end of its ``_init_workspace`` that decides: without a multicast address there are no multicast blocks."""
    if not Facts.multicast or self.config.num_mc_blocks is None:
        self.config = self.config._replace(num_mc_blocks=None)


v2.CustomAllReduceV2._init_workspace = _workspace
v2.CustomAllReduceV2.close = lambda self: None
stand("sglang.srt.utils", is_npu=lambda: False, is_cpu=lambda: False, is_xpu=lambda: False, is_musa=lambda: False)
state = engine("sglang.srt.distributed.parallel_state", "sglang.srt.environ")
state.is_in_tc_piecewise_cuda_graph = lambda: piecewise


def sglang_communicator(max_bytes: int) -> Any:
    """SGLang's own all-reduce object, made anew."""
    return v2.CustomAllReduceV2(GROUP, META, max_bytes)


def sglang_choice(made: Any, use_custom: bool, message: Message, in_capture: bool,
                  in_piecewise: bool) -> tuple[str, str, str]:
    """``(method, algorithm, source)`` of SGLang's own ``_resolve_outplace_all_reduce_method`` and ``_pick_algo``."""
    global capturing, piecewise
    capturing, piecewise = in_capture, in_piecewise
    made._graph_mode_allowed = in_capture and not made.disabled and made._is_graph_mode_supported
    group = SimpleNamespace(ca_comm=made if use_custom else None, qr_comm=None, pymscclpp_comm=None,
                            torch_symm_mem_comm=None, pynccl_comm=object())
    method = state.GroupCoordinator._resolve_outplace_all_reduce_method(group, message)
    if method != "ca":
        return ("in_place" if method is None else method), "nccl", "none"
    algorithm, source = made._pick_algo(message.nbytes, can_use_graph=made._can_use_graph())
    return "custom", algorithm, SOURCES[source]
