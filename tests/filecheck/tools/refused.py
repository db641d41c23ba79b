# RUN: not detent-opt %s 2>&1 | filecheck %s
# RUN: not detent-opt %s:missing 2>&1 | filecheck %s --check-prefix=MISSING
from detent.lang import Unpinnable, record, selection


@record
class Call:
    tokens: Unpinnable[int]


@selection(family="toy")
def loops(call: Call):
    # CHECK: {{^}}error: {{.*}}refused.py:14:5: a 'while' loop is not part of the language ({{.*}}){{$}}
    while call.tokens:
        pass


# MISSING: {{^}}error: 'missing' in {{.*}}refused.py does not exist (its selections: loops){{$}}
