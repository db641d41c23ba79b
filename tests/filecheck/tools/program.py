# RUN: detent-opt %s | filecheck %s --check-prefix=BOTH
# RUN: detent-opt %s:second | filecheck %s --check-prefix=ONE
# RUN: detent-opt %s:second --print-op-generic | detent-opt | filecheck %s --check-prefix=ONE
from detent.lang import Unpinnable, assume, record, selection


@record
class Call:
    tokens: Unpinnable[int]


@selection(family="toy")
def first(call: Call):
    assume(1 <= call.tokens <= 8)
    return {"wide": call.tokens > 4}


@selection(family="toy")
def second(call: Call):
    assume(1 <= call.tokens <= 8)
    return {"rows": min(call.tokens, 4)}


# BOTH: selir.program "first" family "toy"
# BOTH: selir.program "second" family "toy"

# ONE-NOT: "first"
# ONE: selir.program "second" family "toy"
# ONE: selir.input "tokens" unpinnable : !selir.int
