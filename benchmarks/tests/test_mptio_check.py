"""mptio -C: what is in the files, who wrote it, and that nothing wrong goes unseen."""

import os

from harness import KIB, Case, every_mpi, in_own_mounts, mpi, mpi_with_first, program, stamps

MPTIO = program("mptio")
SKIP_WRITES = ["-k", "0", "-k", "1", "-k", "2"]


class Check(Case):
    def words(self, *more, size="16K"):
        return ["-f", size, "-b", "1K", "-t", "2", "-d", self.dir, "-C", *more]

    def read(self, name="File"):
        with open(os.path.join(self.dir, name), "rb") as file:
            return file.read()

    def write(self, data, name="File"):
        with open(os.path.join(self.dir, name), "wb") as file:
            file.write(data)

    def test_the_pattern_tells_who_wrote(self):
        self.good(mpi(3, MPTIO, *self.words("-K", "-k", "1", "-k", "2")))
        for index, (at, process, thread, number) in enumerate(stamps(self.read())):
            self.assertEqual(at, index * 16)
            self.assertEqual((process, thread, number), (at // (16 * KIB), at // (8 * KIB) % 2, 1))

    @every_mpi
    def test_a_read_modify_write_signs_with_one_word(self):
        self.good(mpi(3, MPTIO, *self.words("-K", "-k", "2", "-r")))
        for at, process, _, number in stamps(self.read()):
            home = at // (16 * KIB)
            # Pass 1 by the home of the region, pass 2 after one rotation.
            expected = ((home + 1) % 3, 2) if at % KIB == 0 else (home, 1)
            self.assertEqual((process, number), expected)

    @every_mpi
    def test_rotation_reads_what_the_neighbour_wrote(self):
        traces = os.path.join(self.aside, "trace")
        os.mkdir(traces)
        for mode in ("-G", "-P", "-T"):
            self.good(mpi(3, MPTIO, mode, *self.words("-K", "-r", "-k", "1", "-k", "2", "-k", "4")),
                      env={"MPTIO_TRACE": traces})
            for process in range(3):
                for thread in range(2):
                    with open(f"{traces}/{process}.{thread}", encoding="ascii") as file:
                        reads = [line.split() for line in file if line.startswith("3 r")]
                    self.assertEqual(len(reads), 8)
                    for _, _, path, offset, size in reads:
                        record = self.read(path)[int(offset):int(offset) + int(size)]
                        wrote = {(who, which) for _, who, which, _ in stamps(record)}
                        self.assertEqual(wrote, {((process - 1) % 3, thread)})

    def test_a_flipped_byte_is_found_wherever_it_is(self):
        self.good(mpi(2, MPTIO, *self.words("-K")))
        data = self.read()
        # In an offset, in process, thread, pass and check sum of a stamp, in the stamp of a read-modify-write,
        # the first and the last byte; by each process.
        for at in (0, 7, 8, 15, 4096 + 3, 4096 + 16 + 8, 4096 + 16 + 11, 4096 + 16 + 15, 20000, len(data) - 1):
            bad = bytearray(data)
            bad[at] ^= 0x10
            self.write(bad)
            process, unit = at // (16 * KIB), at // 16 * 16
            found = f"process {process}: check before the first test: thread .*File is wrong at offset "
            exact = str(at) if at % 16 < 8 else str(unit + 8)
            self.bad(mpi(2, MPTIO, *self.words("-K", *SKIP_WRITES)), found + exact)
        self.write(data)
        self.good(mpi(2, MPTIO, *self.words(*SKIP_WRITES)))

    def test_swapped_lost_and_missing_records_are_found(self):
        self.good(mpi(2, MPTIO, *self.words("-K", "-k", "1")))
        data = self.read()
        swapped = data[KIB:2 * KIB] + data[:KIB] + data[2 * KIB:]
        lost = data[:5 * KIB] + bytes(KIB) + data[6 * KIB:]
        for bad, what in ((swapped, "is wrong at offset 1:"), (lost, "is wrong at offset 5121:"),
                          (data[:-1], "the file ends")):
            self.write(bad)
            self.bad(mpi(2, MPTIO, *self.words("-K", *SKIP_WRITES)), what)

    @every_mpi
    def test_writes_that_do_not_reach_the_neighbour_are_found(self):
        # Process 0 works in a tmpfs that only it sees: each finds zeros where the other wrote. Which of the two
        # finds it first, and stops the other, is open.
        unshare = "unshare --mount" if os.geteuid() == 0 else "unshare --mount --map-root-user"
        make = f'truncate -s 32K "{self.dir}/File"'
        shell = f"""exec {unshare} sh -c 'mount -t tmpfs none "{self.dir}" && {make} && exec "$0" "$@"' "$0" "$@" """
        self.write(bytes(32 * KIB))
        when = r"check after test 0 \(Seq_Write\): thread 0: .*/File is wrong at offset "
        by_first = "16385: written last by process 1, thread 0, pass 1; found: 0x0+ instead of the offset"
        by_second = "8: written last by process 0, thread 0, pass 1; found: no stamp"
        self.bad(mpi_with_first(shell, 2, MPTIO, *self.words("-r")),
                 f"(process 0: {when}{by_first}|process 1: {when}{by_second})")

    def test_an_old_pass_is_found(self):
        # The same with a file that is right in all but the pass: what was there before the writer wrote.
        self.good(mpi(2, MPTIO, *self.words("-K", "-k", "2")))
        unshare = "unshare --mount" if os.geteuid() == 0 else "unshare --mount --map-root-user"
        path, copy = f"{self.dir}/File", f"{self.aside}/File"
        make = f'cp "{path}" "{copy}" && mount -t tmpfs none "{self.dir}" && cp "{copy}" "{path}"'
        shell = f"""exec {unshare} sh -c '{make} && exec "$0" "$@"' "$0" "$@" """
        self.bad(mpi_with_first(shell, 2, MPTIO, *self.words("-r", "-k", "0", "-k", "2")),
                 r"process [01]: check after test 1 \(Rd_Mod_Wr\): thread 0: .* written last by process ([01]), "
                 r"thread 0, pass 1; found: process \1, thread 0, pass 2$")

    def test_files_without_the_pattern_are_refused(self):
        words = ["-f", "16K", "-b", "1K", "-t", "2", "-d", self.dir]
        self.good(mpi(2, MPTIO, *words, "-K"))
        self.bad(mpi(2, MPTIO, *self.words("-K", *SKIP_WRITES)), "is wrong at offset 0: written last by any stamp")

    def test_all_layouts_check_well(self):
        for more in (["-O", "p"], ["-O", "t"], ["-O", "p", "-O", "t"], ["-O", "t", "-r"], ["-P", "-O", "t", "-r"],
                     ["-T", "-r", "-s", "4K"], ["-I", "-r"], ["-a", "3"], ["-a", "1000", "-O", "t"]):
            self.good(mpi(3, MPTIO, *self.words(*more)))

    def test_tmpfs_and_ramfs(self):
        for kind in ("tmpfs", "ramfs"):
            self.good(in_own_mounts(f"mount -t {kind} none '{self.dir}'", mpi(2, MPTIO, *self.words("-r", "-U"))))
