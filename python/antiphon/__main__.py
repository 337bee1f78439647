"""``python -m antiphon`` is the command ``antiphon``."""

from antiphon._command import main

main()
