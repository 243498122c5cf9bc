"""Started as a file under ``python -s -P -S``, so that nothing outside the package is imported."""

import os
import sys

if __name__ == "__main__":
    # Last, so that nothing beside the package can shadow the standard library.
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    from handrail.keeper.main import main

    main(sys.argv[1:])
