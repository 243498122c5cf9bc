"""Started as a file under ``python -I -S -B``, so that nothing outside the package is imported."""

import os
import sys

if __name__ == "__main__":
    # Searched for the package alone, and last: nothing that lies beside it is ever imported.
    here = os.path.abspath(__file__)
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(here)))))
    __import__("handrail")
    sys.path.pop()
    from handrail.network.porter.main import main

    main(sys.argv[1:])
