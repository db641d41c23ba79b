"""``python -m detent`` is the ``detent`` command."""

from __future__ import annotations

import sys

from detent.cli import main

sys.exit(main())
