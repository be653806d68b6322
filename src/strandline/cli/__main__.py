"""``python -m strandline.cli`` is ``strandline``."""

from strandline.cli.app import main

main()
