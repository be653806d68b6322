"""Run ``strandline`` as ``python -m strandline.cli``."""

from strandline.cli import main

main()
