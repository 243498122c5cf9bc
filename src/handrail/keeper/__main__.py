"""Started as a file under ``python -s -P -S``, so that nothing outside the package is imported."""

import os
import sys

if __name__ == "__main__":
    # Searched for the package alone, and last: nothing that lies beside it is ever imported.
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    __import__("handrail")
    sys.path.pop()
    from handrail.keeper.main import main

    main(sys.argv[1:])
