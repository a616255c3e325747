# An application of the tests of locks: evaluates each line that it reads, and says what came of it.
import errno, fcntl, os, signal, struct, sys, threading

FILES = {}
READ, WRITE, UNLOCK = 0, 1, 2


class Alarm(Exception):
    pass


def on_alarm(*_):
    raise Alarm


signal.signal(signal.SIGALRM, on_alarm)


def guard(call, *arguments):
    try:
        return call(*arguments)
    except Alarm:
        return "interrupted"
    except OSError as error:
        # Python knows this number by its other name.
        return "EDEADLK" if error.errno == errno.EDEADLK else errno.errorcode[error.errno]


def open_as(name, path):
    FILES[name] = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    return "ok"


def close(name):
    os.close(FILES.pop(name))
    return "ok"


def dup(name, other):
    FILES[other] = os.dup(FILES[name])
    return "ok"


def record(command, name, kind, start, length):
    given = struct.pack("hhqqi", kind, 0, start, length, 0)
    return struct.unpack("hhqqi", fcntl.fcntl(FILES[name], command, given))


def lock(way, name, kind, start=0, length=0, wait=False):
    def do():
        if way == "flock":
            operation = [fcntl.LOCK_SH, fcntl.LOCK_EX, fcntl.LOCK_UN][kind]
            fcntl.flock(FILES[name], operation | (0 if wait else fcntl.LOCK_NB))
        else:
            record({"posix": 6, "ofd": 37}[way] + wait, name, kind, start, length)
        return "ok"

    return guard(do)


def test(way, name, kind, start=0, length=0):
    kind, _, start, length, pid = record({"posix": 5, "ofd": 36}[way], name, kind, start, length)
    return "free" if kind == UNLOCK else f"{['read', 'write'][kind]} {start} {length} {pid}"


def alarm_while(seconds, *arguments):
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        return lock(*arguments)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def fork_and(code):
    child = os.fork()
    if child == 0:
        os._exit(0 if eval(code) else 1)
    return os.waitpid(child, 0)[1]


def write(name, offset, text):
    return os.pwrite(FILES[name], text.encode(), offset)


def count(name, times):
    # A counter in the file, under a lock: each is a read and a write.
    for _ in range(times):
        assert lock("posix", name, WRITE, 0, 8, True) == "ok"
        value = int(os.pread(FILES[name], 8, 0) or b"0") + 1
        os.pwrite(FILES[name], b"%08d" % value, 0)
        assert lock("posix", name, UNLOCK, 0, 8) == "ok"
    return "ok"


def sqlite_count(path, times):
    import sqlite3

    base = sqlite3.connect(path, timeout=100, isolation_level=None)
    for _ in range(times):
        base.execute("BEGIN IMMEDIATE")
        base.execute("UPDATE counter SET value = value + 1")
        base.execute("COMMIT")
    value = base.execute("SELECT value FROM counter").fetchone()[0]
    base.close()
    return value


def sqlite_make(path):
    import sqlite3

    base = sqlite3.connect(path)
    base.execute("PRAGMA journal_mode=DELETE")
    base.execute("CREATE TABLE counter(value INTEGER)")
    base.execute("INSERT INTO counter VALUES (0)")
    base.commit()
    checked = base.execute("PRAGMA integrity_check").fetchone()[0]
    base.close()
    return checked


for line in sys.stdin:
    try:
        said = eval(line)
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
    print(said, flush=True)
