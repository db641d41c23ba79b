"""Attention of the real vLLM under the plug-in: what the kernel is handed of vLLM's packed cache, what is refused, and
that every step's conditions are checked, those of replayed graphs too."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from plugin_support import Conditions, putting_back
from vllm.config import CUDAGraphMode
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.attention.backends import flash_attn
from vllm.v1.attention.backends.flash_attn import (
    FlashAttentionBackend,
    FlashAttentionImpl,
    FlashAttentionMetadataBuilder,
)
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.worker.gpu.attn_utils import build_attn_metadata

from detent.engines.vllm import active as actives
from detent.engines.vllm.sites import attention
from detent.kernels import attention_split
from detent.runtime.errors import DetentError, Violation

HEADS, KV_HEADS, DIM, PAGE, CONTEXT = 4, 2, 64, 16, 1024
DTYPE = torch.float16  # the interpreter cuts bf16 off and does not round
POINTS = {"head_dim": DIM, "head_dim_v": DIM, "num_splits": 4, "split_stride": 256}


def conditions(points: dict[str, Any] = POINTS, **families: Any) -> Any:
    found = Conditions({"attention": points, **families})
    found.deployment.facts["limits"] = {"max_context": CONTEXT}
    found.select = {"attention": None, "gemm": None, "norm": None, **families}
    return found


@pytest.fixture
def put_back(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)  # it asks the driver
    yield from putting_back("sites.attention")


@pytest.fixture
def tuple_in_force(put_back: None) -> Conditions:
    active: Conditions = conditions()
    attention.install(active)
    return active


# ---- what is handed to the kernel -----------------------------------------------------------------------------------


def impl(**changed: Any) -> Any:
    """vLLM's own object of a layer."""
    return FlashAttentionImpl(**{
        "num_heads": HEADS, "head_size": DIM, "scale": DIM ** -0.5, "num_kv_heads": KV_HEADS, "alibi_slopes": None,
        "sliding_window": None, "kv_cache_dtype": "auto", **changed})


def cache_of(keys: list[torch.Tensor], layout: str, monkeypatch: pytest.MonkeyPatch, pages: int = 0
             ) -> tuple[torch.Tensor, torch.Tensor]:
    """vLLM's cache that holds these requests' keys and values (tokens, KV heads, 2 * head dim) in pages of any order,
    in the memory layout that its backend asks for; and its table."""
    monkeypatch.setattr(flash_attn, "get_kv_cache_layout", lambda: layout)
    width = pages or max(-(-len(each) // PAGE) for each in keys)
    shape = FlashAttentionBackend.get_kv_cache_shape(len(keys) * width, PAGE, KV_HEADS, DIM)
    order = FlashAttentionBackend.get_kv_cache_stride_order()
    cache = torch.full([shape[i] for i in order], math.nan, dtype=DTYPE)
    cache = cache.permute([order.index(i) for i in range(4)])  # as the runner makes it
    assert tuple(cache.shape) == (len(keys) * width, KV_HEADS, PAGE, 2 * DIM)
    table = torch.randperm(len(keys) * width, generator=torch.Generator().manual_seed(1)).view(len(keys), width).int()
    for row, request in zip(table, keys, strict=True):
        for token, each in enumerate(request):
            cache[int(row[token // PAGE]), :, token % PAGE] = each
    return cache, table


def dense(q: torch.Tensor, cached: torch.Tensor, scale: float) -> torch.Tensor:
    """The same attention of one request in float64."""
    k, v = (part.double().repeat_interleave(HEADS // KV_HEADS, 1).transpose(0, 1) for part in cached.split(DIM, -1))
    scores = q.double().transpose(0, 1) @ k.transpose(1, 2) * scale
    position = torch.arange(len(cached) - len(q), len(cached))
    scores = scores.masked_fill(torch.arange(len(cached)) > position[:, None], -math.inf)
    return (scores.softmax(-1) @ v).transpose(0, 1)


def metadata(lengths: list[int], queries: list[int], table: torch.Tensor, **changed: Any) -> Any:
    starts = [sum(queries[:i]) for i in range(len(queries) + 1)]
    return flash_attn.FlashAttentionMetadata(**{
        "num_actual_tokens": sum(queries), "max_query_len": max(queries), "max_seq_len": max(lengths),
        "query_start_loc": torch.tensor(starts, dtype=torch.int32), "block_table": table,
        "seq_lens": torch.tensor(lengths, dtype=torch.int32), "slot_mapping": None, "use_cascade": False,
        "common_prefix_len": 0, "cu_prefix_query_lens": None, "prefix_kv_lens": None, "suffix_kv_lens": None,
        **changed})


def call(layer: Any, step: Any, cache: torch.Tensor, q: torch.Tensor, **scales: Any) -> torch.Tensor:
    """As vLLM's operator calls it: with a tensor for the result that is longer than the step."""
    out = torch.full_like(q, 7.0)
    assert layer.forward(None, q, None, None, cache, step, out, **scales) is out
    return out


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, put_back: None) -> list[dict[str, Any]]:
    """Arguments of each call of the kernel, which runs."""
    made: list[dict[str, Any]] = []
    kernel = attention_split.attention_split

    def noting(q: Any, k: Any, v: Any, table: Any, starts: Any, lengths: Any, **named: Any) -> Any:
        made.append({**named, "k": k, "v": v})
        return kernel(q, k, v, table, starts, lengths, **named)
    monkeypatch.setattr(attention_split, "attention_split", noting)
    attention.install(conditions())
    return made


@pytest.mark.parametrize("layout", ("NHD", "HND"))
@pytest.mark.parametrize("scale", (DIM ** -0.5, 0.3))
def test_a_step_of_requests(calls: list[dict[str, Any]], layout: str, scale: float,
                            monkeypatch: pytest.MonkeyPatch) -> None:
    """Prefill, chunk and decode in one step, in both layouts; rows behind the step's tokens are left alone. A decoded
    row alone has the same bits."""
    torch.manual_seed(0)
    lengths, queries = [40, 300, 21], [1, 5, 21]
    cached = [torch.randn(length, KV_HEADS, 2 * DIM).to(DTYPE) for length in lengths]
    cache, table = cache_of(cached, layout, monkeypatch)
    before = cache.clone()
    q = torch.randn(sum(queries) + 3, HEADS, DIM).to(DTYPE)
    layer = impl(scale=scale)
    got = call(layer, metadata(lengths, queries, table), cache, q)
    right = [dense(part, each, scale) for part, each in zip(q[:-3].split(queries), cached, strict=True)]
    torch.testing.assert_close(got[:-3].double(), torch.cat(right), rtol=2e-3, atol=2e-3)
    assert bool((got[-3:] == 7.0).all()) and torch.equal(cache.nan_to_num(), before.nan_to_num())
    (made,) = calls
    assert made["k"].data_ptr() == cache.data_ptr()  # not a copy
    assert (made["num_splits"], made["split_stride"], made["max_seqlen_q"]) == (4, 256, 21)

    alone = call(layer, metadata([40], [1], table[:1]), cache, q[:1].clone())
    assert torch.equal(alone, got[:1])
    last = call(layer, metadata([300], [1], table[1:2]), cache, q[5:6].clone())
    assert torch.equal(last, got[5:6])


def test_one_kv_head(calls: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    """A dimension of one has whatever stride torch gave it."""
    monkeypatch.setattr(sys.modules[__name__], "KV_HEADS", 1)
    cached = [torch.randn(30, 1, 2 * DIM).to(DTYPE)]
    q = torch.randn(1, HEADS, DIM).to(DTYPE)
    for strides in (None, (2 * DIM * PAGE, 1, 2 * DIM, 1)):
        cache, table = cache_of(cached, "NHD", monkeypatch)
        cache = cache.as_strided(cache.shape, strides or cache.stride())
        got = call(impl(num_kv_heads=1), metadata([30], [1], table), cache, q)
        torch.testing.assert_close(got.double(), dense(q, cached[0], DIM ** -0.5), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("pages", (CONTEXT // PAGE, 20))
def test_launches_are_sized_by_the_step_or_for_all_steps(calls: list[dict[str, Any]], pages: int,
                                                         monkeypatch: pytest.MonkeyPatch) -> None:
    """A captured graph is replayed with longer requests: up to the deployment's context, or, of a server that was
    started with less, up to what its table holds."""
    cached = [torch.randn(40, KV_HEADS, 2 * DIM).to(DTYPE)]
    cache, table = cache_of(cached, "NHD", monkeypatch, pages)
    q = torch.randn(1, HEADS, DIM).to(DTYPE)
    step = metadata([40], [1], table)
    eager = call(impl(), step, cache, q)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    captured = call(impl(), step, cache, q)
    assert [made["max_context"] for made in calls] == [40, pages * PAGE]
    assert torch.equal(eager, captured)


def test_while_memory_is_measured(calls: list[dict[str, Any]]) -> None:
    got = call(impl(), None, torch.empty(0), torch.ones(5, HEADS, DIM, dtype=DTYPE))
    assert not got.any() and not calls


@pytest.mark.parametrize("changed, scales", [
    ({"use_cascade": True}, {}), ({}, {"output_scale": torch.ones(1)}), ({}, {"output_block_scale": torch.ones(1)}),
    ({"causal": False}, {}), ({"causal": torch.ones(1, dtype=torch.bool)}, {}),
    ({"mm_prefix_range_tensor": torch.zeros(1, 1, 2)}, {}), ({"rswa_window": 128}, {})])
def test_steps_that_are_refused(calls: list[dict[str, Any]], changed: dict[str, Any], scales: dict[str, Any],
                                monkeypatch: pytest.MonkeyPatch) -> None:
    cache, table = cache_of([torch.randn(40, KV_HEADS, 2 * DIM).to(DTYPE)], "NHD", monkeypatch)
    with pytest.raises(DetentError, match="not served"):
        call(impl(), metadata([40], [1], table, **changed), cache, torch.ones(1, HEADS, DIM, dtype=DTYPE), **scales)
    assert not calls


# ---- layers and tuples that are refused -----------------------------------------------------------------------------


@pytest.mark.parametrize("changed, what", [
    ({"sliding_window": 128}, "a sliding window"),
    ({"alibi_slopes": [0.5] * HEADS}, "ALiBi"),
    ({"logits_soft_cap": 30.0}, "a soft cap"),
    ({"sinks": torch.zeros(HEADS)}, "attention sinks"),
    ({"attn_type": "encoder"}, "encoder attention"),
    ({"attn_type": "encoder_only"}, "encoder_only attention"),
    ({"attn_type": "encoder_decoder"}, "encoder_decoder attention"),
    ({"kv_cache_dtype": "fp8"}, "a KV cache of fp8"),
    ({"kv_cache_dtype": "fp8_e5m2"}, "a KV cache of fp8_e5m2"),
    ({"kv_cache_dtype": "float16"}, "a KV cache of float16"),
    ({"kv_sharing_target_layer_name": "layers.0"}, "layers that share their cache"),
])
def test_layers_that_are_refused(tuple_in_force: Conditions, changed: dict[str, Any], what: str,
                                 monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flash_attn, "flash_attn_supports_sinks", lambda: True, raising=False)
    assert impl().num_heads == HEADS and impl(kv_cache_dtype="bfloat16", logits_soft_cap=0.0)
    with pytest.raises(DetentError, match=f"Detent does not serve {what}"):
        impl(**changed)


@pytest.mark.parametrize("points", ({"head_dim": 80, "head_dim_v": 80}, {"head_dim": 128, "head_dim_v": 64}))
def test_heads_that_the_kernel_has_not(put_back: None, points: dict[str, int]) -> None:
    original = FlashAttentionImpl.forward
    with pytest.raises(DetentError, match="is not served"):
        attention.install(conditions({**POINTS, **points}))
    assert FlashAttentionImpl.forward is original


# ---- every step -----------------------------------------------------------------------------------------------------


def builder(monkeypatch: pytest.MonkeyPatch, max_seqs: int = 64, graphs: int = 64) -> Any:
    """vLLM's builder as on an H200, where FlashAttention would plan a step ahead."""
    def never(**named: Any) -> Any:
        raise AssertionError("FlashAttention's plan of a step was made")
    monkeypatch.setattr(flash_attn, "get_flash_attn_version", lambda *arguments, **named: 3)
    monkeypatch.setattr(flash_attn, "get_scheduler_metadata", never, raising=False)
    spec = FullAttentionSpec(block_size=PAGE, num_kv_heads=KV_HEADS, head_size=DIM, dtype=torch.bfloat16)
    config = SimpleNamespace(
        model_config=SimpleNamespace(get_num_attention_heads=lambda parallel: HEADS, get_head_size=lambda: DIM,
                                     get_num_kv_heads=lambda parallel: KV_HEADS, rswa_window=None),
        parallel_config=SimpleNamespace(cp_kv_cache_interleave_size=1),
        cache_config=SimpleNamespace(cache_dtype="auto"),
        compilation_config=SimpleNamespace(cudagraph_mode=CUDAGraphMode.FULL_AND_PIECEWISE,
                                           max_cudagraph_capture_size=graphs),
        attention_config=SimpleNamespace(flash_attn_max_num_splits_for_cuda_graph=32),
        scheduler_config=SimpleNamespace(max_num_seqs=max_seqs))
    made = FlashAttentionMetadataBuilder(spec, ["layer"], config, torch.device("cpu"))
    monkeypatch.setattr(flash_attn, "_get_sliding_window_configs", lambda config: set())
    return made


def common(lengths: list[int], queries: list[int], width: int, **changed: Any) -> Any:
    starts = torch.tensor([sum(queries[:i]) for i in range(len(queries) + 1)], dtype=torch.int32)
    return CommonAttentionMetadata(**{
        "query_start_loc": starts, "query_start_loc_cpu": starts, "num_reqs": len(queries),
        "seq_lens": torch.tensor(lengths, dtype=torch.int32), "num_actual_tokens": sum(queries),
        "max_query_len": max(queries), "max_seq_len": max(lengths), "slot_mapping": torch.zeros(sum(queries)),
        "block_table_tensor": torch.zeros(len(queries), width, dtype=torch.int32), **changed})


def test_a_step_is_checked_and_not_planned(tuple_in_force: Conditions, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its sizes as vLLM launches them, and whether a whole graph may be replayed; for every family."""
    tuple_in_force.select["moe"] = None  # type: ignore[attr-defined]
    made = builder(monkeypatch)
    assert made.aot_schedule is False
    step = made.build(0, common([40, 300], [1, 5], 64))
    assert step.scheduler_metadata is None and not step.use_cascade and step.max_query_len == 5
    assert tuple_in_force.checked == [("attention", 2, 5, 300, 6, 64, True), ("gemm", 6), ("norm", 6), ("moe", 6)]
    tuple_in_force.checked.clear()
    made.build(0, common([300], [65], 64), fast_build=True)
    made.build_for_cudagraph_capture(common([CONTEXT] * 8, [1] * 8, 64))
    assert [each for each in tuple_in_force.checked if each[0] == "attention"] == [
        ("attention", 1, 65, 300, 65, 64, False), ("attention", 8, 1, CONTEXT, 8, 64, True)]


def test_a_model_without_experts(tuple_in_force: Conditions, monkeypatch: pytest.MonkeyPatch) -> None:
    builder(monkeypatch).build(0, common([40], [1], 64))
    assert [each[0] for each in tuple_in_force.checked] == ["attention", "gemm", "norm"]


@pytest.fixture(scope="module")
def real_tuple(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tuple of one of Detent's deployments, solved here."""
    pytest.importorskip("xdsl", reason="needs xdsl, to solve")
    folder = tmp_path_factory.mktemp("tuple")
    variables = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1]),
                 "DETENT_CACHE_DIR": str(folder / "cache"), "VLLM_PLUGINS": ""}
    done = subprocess.run([sys.executable, "-m", "detent", "tuple", "new", "-d", "llama-3.2-1b-tp1-h200",
                           str(folder / "tuple.json")], env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return str(folder / "tuple.json")


class Replays:
    """Steps as vLLM's second model runner makes them while a whole graph is replayed: the host makes the step's
    metadata, and no layer's code runs."""

    def __init__(self, made: Any, facts: Any) -> None:
        self.group = SimpleNamespace(get_metadata_builder=lambda index: made, layer_names=["layer"])
        self.width = -(-facts["limits"]["max_context"] // facts["engine"]["page_size"])
        self.replayed = 0

    def step(self, lengths: list[int], padded: int) -> None:
        starts = torch.arange(padded + 1, dtype=torch.int32)
        build_attn_metadata(
            [[self.group]], padded, padded, starts, starts, 1, torch.tensor(lengths + [0] * (padded - len(lengths))),
            max(lengths), [torch.zeros(padded, self.width, dtype=torch.int32)], torch.zeros(1, padded),
            SimpleNamespace(kv_cache_groups=[None]))
        self.replayed += 1


def test_a_condition_that_breaks_while_a_graph_is_replayed(put_back: None, real_tuple: str,
                                                           monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine stops before the step's graph is replayed, and is told the condition, its line and the inputs."""
    monkeypatch.setattr(actives, "_active", None)
    monkeypatch.setenv("DETENT_CACHE_DIR", str(Path(real_tuple).with_name("cache")))
    found = actives.activate(real_tuple)
    attention.install(found)
    limits = found.deployment.facts["limits"]
    replays = Replays(builder(monkeypatch, limits["max_num_seqs"], 512), found.deployment.facts)
    replays.step([1, 900], 2)
    replays.step([limits["max_context"]] * 3, 4)
    assert replays.replayed == 2
    with pytest.raises(Violation) as stopped:
        replays.step([5, limits["max_context"] + 1], 2)
    assert replays.replayed == 2
    text = str(stopped.value)
    assert isinstance(stopped.value, DetentError)
    assert "assume does not hold: 1 <= max_seqlen_k <= limits.max_context" in text
    assert f"max_seqlen_k={limits['max_context'] + 1}" in text and "in_graph=True" in text
    place = text.partition(": ")[0]
    file, _, line = place.rpartition(":")
    source = (Path(__file__).resolve().parents[1] / file).read_text(encoding="utf-8").splitlines()
    assert "assume(1 <= max_seqlen_k <= limits.max_context)" in source[int(line) - 1]

    with pytest.raises(Violation, match=r"1 <= b <= limits\.max_num_seqs"):
        replays.step([5], limits["max_num_seqs"] + 1)
    # Of the other families too: attention's own conditions do not hang on the number of tokens that is broken here.
    monkeypatch.setitem(found.select, "attention", lambda *inputs: {})  # type: ignore[arg-type]
    with pytest.raises(Violation, match=r"call\.num_tokens <= limits\.max_num_batched_tokens"):
        replays.step([5], limits["max_num_batched_tokens"] + 1)


def test_the_interpreter_ran() -> None:
    assert attention_split._device().interpreted
