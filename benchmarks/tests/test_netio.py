"""netio: what is sent and counted, latencies, that a flipped byte is found on its way, and failures."""

import contextlib
import json
import os
import socket
import threading

from harness import Case, every_mpi, mpi, program

NETIO = program("netio")


def rows_below(report, title):
    lines = report.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith(title)) + 1
    rows = []
    while at < len(lines) and lines[at].strip() and not lines[at].startswith("Client and"):
        if not lines[at].startswith(("#", "---", "     Block")):
            rows.append(lines[at].split())
        at += 1
    return rows


def free_port():
    with socket.socket() as own:
        own.bind(("127.0.0.1", 0))
        return own.getsockname()[1]


class Tunnel:
    """Forwards connections from its port to another one; `change(data, offset, is_to_server)` says what goes on.
    `first` is done before a connection is made."""

    def __init__(self, to, change, first=lambda: None):
        self.to, self.change, self.first = to, change, first
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.sockets, self.threads = [self.listener], []
        self.start(self.accept)

    def start(self, what, *arguments):
        thread = threading.Thread(target=what, args=arguments, daemon=True)
        self.threads.append(thread)
        thread.start()

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                self.first()
                server = socket.create_connection(("127.0.0.1", self.to))
                self.sockets += [client, server]
                self.start(self.forward, client, server, True)
                self.start(self.forward, server, client, False)

    def forward(self, source, target, is_to_server):
        offset = 0
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                changed = self.change(data, offset, is_to_server)
                offset += len(data)
                if changed:
                    target.sendall(changed)
            target.shutdown(socket.SHUT_WR)

    def close(self):
        for one in self.sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        for thread in self.threads:
            thread.join(timeout=10)


class Netio(Case):
    def netio(self, processes, *options):
        return mpi(processes, NETIO, *options)

    @every_mpi
    def test_every_request_is_counted_at_both_ends(self):
        # 2 servers, 3 clients, 2 connections of each to each.
        requests = 40
        report = self.good(self.netio(5, "-s", 2, "-c", 2, "-n", requests, "-b", "1,1000,100K", "-w", "0,30,100",
                                      "-q", 7, "-C")).out
        raw = rows_below(report, "RAW TIMES")
        self.assertEqual(len(raw), 9 * 5)
        for size in (1, 1000, 102400):
            for percent in (0, 30, 100):
                mine = [row for row in raw if row[:2] == [str(size), str(percent)]]
                self.assertEqual([(row[2], row[3]) for row in mine],
                                 [(str(p), "server" if p < 2 else "client") for p in range(5)])
                numbers = [[int(word) for word in row[4:8]] for row in mine]
                servers, clients = numbers[:2], numbers[2:]
                self.assertEqual([reads + writes for reads, writes, _, _ in clients], [4 * requests] * 3)
                self.assertEqual([reads + writes for reads, writes, _, _ in servers], [6 * requests] * 2)
                for column in range(4):
                    self.assertEqual(sum(row[column] for row in servers), sum(row[column] for row in clients))
                for reads, writes, read_bytes, written_bytes in numbers:
                    self.assertEqual((read_bytes, written_bytes), (reads * size, writes * size))
                writes = sum(row[1] for row in clients)
                if percent == 30:
                    self.assertAlmostEqual(writes / (12 * requests), 0.3, delta=0.07)
                else:
                    self.assertEqual(writes, percent // 100 * 12 * requests)

    def test_chance_is_the_same_in_each_run(self):
        drawn = []
        for _ in range(2):
            report = self.good(self.netio(3, "-s", 1, "-c", 2, "-n", 50, "-b", "64", "-w", "40")).out
            drawn.append([row[2:6] for row in rows_below(report, "RAW TIMES")])
        self.assertEqual(drawn[0], drawn[1])

    @every_mpi
    def test_figures(self):
        out = os.path.join(self.aside, "json")
        report = self.good(self.netio(3, "-s", 1, "-n", 300, "-b", "4K,256K", "-w", "0,50", "--json", out)).out
        with open(out, encoding="utf-8") as file:
            result = json.load(file)
        raw = rows_below(report, "RAW TIMES")
        latencies = rows_below(report, "LATENCIES")
        tests = rows_below(report, "     Block")
        self.assertEqual(len(tests), 4)
        for row, test in zip(tests, result["results"], strict=True):
            mine = [[words[3], *(float(word) for word in words[4:])] for words in raw if words[:2] == row[:2]]
            clients = [words for words in mine if words[0] == "client"]
            elapsed = max(words[8] for words in mine)
            size = sum(words[3] + words[4] for words in clients)
            reads, writes = (sum(words[column] for words in clients) for column in (1, 2))
            cpu = {role: sum(words[6] + words[7] for words in mine if words[0] == role) for role in ("client", "server")}
            expected = [reads, writes, size / 2**20 / elapsed, (reads + writes) / elapsed, elapsed,
                        cpu["client"] / elapsed, cpu["server"] / elapsed]
            for word, value in zip(row[2:], expected, strict=True):
                self.assertAlmostEqual(float(word), value, delta=0.006 + 1e-4 * value)
            for words in mine:
                self.assertLessEqual(words[5], words[8])
            self.assertEqual((test["bytes"], test["reads"], test["writes"]), (size, reads, writes))
            self.assertEqual([process["role"] for process in test["processes"]], [words[0] for words in mine])
            for kind, count in (("read", reads), ("write", writes)):
                self.check_latencies(test, kind, count)
                shown = [words for words in latencies if words[:3] == [*row[:2], kind]]
                self.assertEqual(len(shown), count > 0)
                if count > 0:
                    names = ("mean", "sigma", "min", "p50", "p90", "p99", "p999", "max")
                    for word, name in zip(shown[0][4:], names, strict=True):
                        self.assertAlmostEqual(float(word), 1e6 * test[kind][f"{name}_seconds"], delta=0.06)

    def check_latencies(self, test, kind, count):
        """Percentiles and mean against the histogram, and against the processes'."""
        histogram, summary = test[f"{kind}_latencies"], test[kind]
        self.assertEqual((sum(own for _, own in histogram), summary["count"]), (count, count))
        clients = [process for process in test["processes"] if process["role"] == "client"]
        self.assertEqual(sum(client[kind]["count"] for client in clients), count)
        if count == 0:
            return
        self.assertEqual(max(client[kind]["max_seconds"] for client in clients), summary["max_seconds"])
        mean = sum(client[kind]["mean_seconds"] * client[kind]["count"] for client in clients) / count
        self.assertAlmostEqual(summary["mean_seconds"], mean, delta=1e-9)
        self.assertAlmostEqual(summary["mean_seconds"], sum(v * c for v, c in histogram) / count, delta=0.016 * mean)
        values = [value for value, own in histogram for _ in range(int(own))]
        for part, name in ((0.5, "p50"), (0.9, "p90"), (0.99, "p99")):
            own = values[max(0, -(-int(part * 1000) * len(values) // 1000) - 1)]
            self.assertAlmostEqual(summary[f"{name}_seconds"], own, delta=0.017 * own)
        order = [summary[f"{name}_seconds"] for name in ("min", "p50", "p90", "p99", "p999", "max")]
        self.assertEqual(order, sorted(order))
        self.assertLess(max(values), 30)

    def test_a_time_ends(self):
        report = self.good(self.netio(2, "-t", 1, "-w", "50", "-b", "64K", "-q", 1)).out
        row = rows_below(report, "     Block")[0]
        self.assertTrue(1 <= float(row[6]) < 10, row)
        self.assertGreater(int(row[2]), 10)

    def tunnel(self, to, change):
        tunnel = Tunnel(to, change)
        self.addCleanup(tunnel.close)
        return tunnel

    def test_a_flipped_byte_is_found(self):
        # Byte 1000 of the block of request 3; heads have 64 and 32 bytes, a client's greeting 16.
        size = 5000
        places = {True: 16 + 3 * (64 + size) + 64 + 1000, False: 3 * (32 + size) + 32 + 1000}
        for is_to_server, process, kind in ((True, 0, "write"), (False, 1, "read")):
            def change(data, offset, direction, flip=is_to_server):
                at = places[flip] - offset
                if direction != flip or not 0 <= at < len(data):
                    return data
                return data[:at] + bytes([data[at] ^ 4]) + data[at + 1:]

            port = free_port()
            words = self.netio(2, "-n", 10, "-b", size, "-w", 100 if is_to_server else 0, "-p", port, "-a",
                               f"127.0.0.1:{self.tunnel(port, change).port}", "-C")
            self.bad(words, rf"^netio: process {process}: -C: byte 1000 of the block of {kind} 3 from process "
                            rf"{1 - process}, connection 0, is \d+ and not \d+$")

    def test_a_stranger_is_sent_away(self):
        # He is there before the client, and knows a greeting's length only.
        port = free_port()
        heard = []

        def knock():
            with socket.create_connection(("127.0.0.1", port), timeout=20) as own:
                own.sendall(b"x" * 16)
                heard.append(own.recv(1))

        tunnel = Tunnel(port, lambda data, *_: data, knock)
        self.addCleanup(tunnel.close)
        report = self.good(self.netio(2, "-n", 50, "-p", port, "-w", 50, "-a", f"127.0.0.1:{tunnel.port}")).out
        self.assertEqual(sum(int(word) for word in rows_below(report, "     Block")[0][2:4]), 50)
        self.assertEqual(heard, [b""])

    @every_mpi
    def test_help_names_every_option(self):
        text = self.good(mpi(2, NETIO, "--help")).out
        for option in "-s -c -q -b -w -t -n -I -a -p -B -D -C --timeout -o --json --help".split():
            self.assertRegex(text, rf"\n  {option} ")


class Errors(Case):
    def test_command_lines_that_make_no_sense(self):
        # What one option may be, in one process; what they say about one another in two.
        for options, pattern in (("-s 0", "-s 0: not a number"), ("-c 0", "-c 0"), ("-q 0", "-q 0"), ("-q 1025", "-q 1025"),
                                 ("-b 0", "-b 0: a block is"), ("-b 1,", "-b .*: a block is"), ("-b 1G", "-b 1G"),
                                 ("-w 101", "-w 101"), ("-w x", "-w x"), ("-p 70000", "-p 70000"), ("-B 0", "-B 0"),
                                 ("--timeout 0", "--timeout 0"), ("-z", "unknown option"),
                                 ("-n 1", "a client and a server are needed")):
            job = self.bad([NETIO, *options.split()], "^netio: process 0: .*" + pattern)
            self.assertEqual((job.code, job.out), (2, ""))
        for options, pattern in (("-s 2", "-s 2: of 2 processes"), ("-t 1 -n 1", "-t and -n contradict"),
                                 ("-I lo -a x", "-a and -I contradict"), ("-B 2G", "-B: socket buffers"),
                                 ("-p 65535 -s 2", "-p 65535: there are no ports beyond 65535")):
            job = self.bad(mpi(3 if "-p" in options else 2, NETIO, *options.split()), "^netio: process 0: .*" + pattern)
            self.assertEqual((job.code, job.out), (2, ""))

    def test_what_cannot_be_reached(self):
        port = free_port()
        for options, pattern in ((["-a", f"127.0.0.1:{port}"], f"process 1: no connection to .* 127.0.0.1:{port}: .*refused"),
                                 (["-a", "no.such.host.invalid"], "process 1: the address of server process 0, no.such"),
                                 (["-a", "x,,y"], "process 1: -a x,,y: addresses are"),
                                 (["-I", "nonexistent0"], "process [01]: -I nonexistent0: this node has no such"),
                                 (["-o", "/nonexistent/report"], "process 0: cannot make the report")):
            self.bad(mpi(4 if "x,,y" in options else 2, NETIO, "-n", 1, *options), "^netio: " + pattern)

    def test_a_port_that_is_taken(self):
        with socket.create_server(("127.0.0.1", 0)) as other:
            port = other.getsockname()[1]
            self.bad(mpi(2, NETIO, "-n", 1, "-p", port), f"process 0: cannot listen on port {port} of 127.0.0.1: Address already")

    @every_mpi
    def test_what_stands_still_ends(self):
        # Nobody forwards the greeting; nobody forwards the fourth block.
        with socket.create_server(("127.0.0.1", 0)) as silent:
            self.bad(mpi(2, NETIO, "-n", 1, "--timeout", 1, "-a", f"127.0.0.1:{silent.getsockname()[1]}"),
                     "process 0: waiting for clients: 0 of 1 connections are there: nothing within 1 seconds")
        port = free_port()
        tunnel = Tunnel(port, lambda data, offset, _: data if offset < 300000 else b"")
        self.addCleanup(tunnel.close)
        self.bad(mpi(2, NETIO, "-n", 100, "--timeout", 5, "-p", port, "-a", f"127.0.0.1:{tunnel.port}"),
                 "process [01], connection 0: nothing moves for 5 seconds")

    def test_nothing_is_left_when_a_process_is_killed(self):
        words = [NETIO, "-t", 3600, "-o", self.dir + "/report", "--json", self.dir + "/json"]
        self.nothing_left_when_killed(3, words, lambda: len(self.files()) == 2, "the report and the result")
