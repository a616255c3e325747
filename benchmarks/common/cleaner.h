/*
 * Removes what a process leaves behind when it dies.
 *
 * A child of each process, started before MPI, waits for its parent's end with a list of files and
 * directories. The parent forgets the list when it ends well. So nothing stays behind after SIGKILL of a
 * process either, which makes mpiexec kill all others the same way. It cannot help where a scheduler kills
 * the child as well.
 */
#ifndef GUPFS_CLEANER_H
#define GUPFS_CLEANER_H

/* Starts the child; once, before MPI, while the process has one thread. `fail`s if it cannot. */
void cleaner_start(void);

enum leftover { LEFT_FILE, LEFT_DIRECTORY, LEFT_TREE };

/*
 * Adds a file, a directory or a directory with everything in it. Relative paths are seen from the directory where `cleaner_start` was called.
 * A LEFT_DIRECTORY is removed when it is empty: by the last of all cleaners that know it.
 */
void cleaner_expect(const char *path, enum leftover kind);

/* Forgets all of them. */
void cleaner_forget(void);

/* Ends the child, who removes what has not been forgotten, and waits for it. */
void cleaner_end(void);

#endif
