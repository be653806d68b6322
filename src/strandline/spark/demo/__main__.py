"""``python -m strandline.spark.demo [--directory DIR]``."""

import argparse
import signal
import sys
from pathlib import Path
from typing import Any

from strandline.errors import StrandlineError
from strandline.spark.demo import run_demo

_INTERRUPTED = 130


def main() -> int:
    """Run the demo; return the exit code."""
    parser = argparse.ArgumentParser(description="flights through NATS, the log and Spark")
    parser.add_argument("--directory", type=Path, default=Path("demo-output"))
    parser.add_argument("--flights", type=int, default=None, help="only so many, to try it out")
    arguments = parser.parse_args()

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    # Also where a shell started us in the background, with SIGINT ignored.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)
    try:
        run_demo(arguments.directory, flights_max=arguments.flights)
    except KeyboardInterrupt:
        sys.stderr.write("\nstopped; everything the demo started has been ended\n")
        return _INTERRUPTED
    except StrandlineError as error:
        sys.stderr.write(f"\nthe demo failed: {error.message}\n")
        return 1
    except OSError as error:
        sys.stderr.write(f"\nthe demo failed: cannot use {error.filename!r}: {error.strerror}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
