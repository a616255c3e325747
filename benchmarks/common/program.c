#include "program.h"

#include <stdio.h>

#include "job.h"

const char PROGRAM_VERSION[] = GUPFS_VERSION;

static int read_and_run(const struct program *program, int argc, char **argv) {
    job_compare(job_fingerprint(argc, argv), "the command line");
    const enum options_asked asked = options_read_rows(program->rows, program->options, argc, argv);
    if (asked == OPTIONS_RUN && program->check != NULL) program->check();
    if (!job_agree()) return EXIT_BAD_USAGE;
    if (asked == OPTIONS_RUN) return program->run(argc, argv);
    if (job.rank == 0) (void)fputs(program->help, stdout);
    return 0;
}

int program_main(const struct program *program, int argc, char **argv) {
    job_begin(program->name, &argc, &argv);
    return job_end(read_and_run(program, argc, argv));
}
