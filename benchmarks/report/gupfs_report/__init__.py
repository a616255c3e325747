"""gupfs-report: the tables and figures of the reference documents, measured again on directories of this machine.

An experiment is data (`model`, `catalog`): axes, the command of each point, how to read its result, and the
document's own figures (`documents`). One engine runs points and stores them (`engine`, `store`), one renderer
makes pages (`frame`, `plots`, `page`). Only the renderer needs more than the standard library.

Invariants: a number on a page comes from a stored run that ended well, whose log is kept, or from the document;
runs on another machine, file system or program build are never mixed.
"""

VERSION = "1.0"


class Failure(Exception):
    """Something that the user can mend: what, where, and what to do."""
