# RUN: detent-opt %s -p 'selir-partial-eval{deployment="qwen3-30b-a3b-tp4-h200"}' | filecheck %s
# RUN: not detent-opt %s -p 'selir-partial-eval{deployment="nowhere"}' 2>&1 | filecheck %s --check-prefix=UNKNOWN
# RUN: not detent-opt %s -p selir-partial-eval 2>&1 | filecheck %s --check-prefix=OPTION
from detent.lang import Unpinnable, assume, record, selection


@record
class Limits:
    max_num_seqs: int


@record
class Call:
    seqs: Unpinnable[int]


def rounded(value: int, step: int) -> int:
    return (value + step - 1) // step * step


@selection(family="toy")
def rows(limits: Limits, call: Call):
    assume(1 <= call.seqs <= limits.max_num_seqs)
    steps = [step for step in (16, 32, 64) if limits.max_num_seqs % step == 0]
    # what facts alone decide is a constant; what reads the batch is an operation of a scalar type
    return {"all": rounded(limits.max_num_seqs, 100), "now": rounded(call.seqs, max(steps)), "two": 2 if steps else 1}


# CHECK-NOT: selir.facts
# CHECK-NOT: !selir.any
# CHECK: selir.program "rows" family "toy" {
# CHECK: %[[SEQS:.*]] = selir.input "seqs" unpinnable : !selir.int
# CHECK: %[[STEP:.*]] = selir.constant <64> : !selir.int
# CHECK: %[[ALL:.*]] = selir.constant <1100> : !selir.int
# CHECK: %[[TWO:.*]] = selir.constant <2> : !selir.int
# CHECK: selir.assume "1 <= call.seqs <= limits.max_num_seqs" {
# CHECK: selir.add %[[SEQS]], %[[STEP]]
# CHECK: %[[NOW:.*]] = selir.mul %{{.*}}, %[[STEP]]
# CHECK: selir.points ["all", "now", "two"] %[[ALL]], %[[NOW]], %[[TWO]] : !selir.int, !selir.int, !selir.int

# UNKNOWN: error: unknown deployment 'nowhere'; known: {{.*}}llama-3.1-70b-tp4-h100
# OPTION: error: selir-partial-eval requires argument "deployment"
