#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "../common/cleaner.h"
#include "../common/outcome.h"
#include "../common/program.h"
#include "../common/tree.h"
#include "mdmark.h"

double system_seconds(void) {
    double sum = 0;
    const int whose[] = {RUSAGE_SELF, RUSAGE_CHILDREN};
    for (int i = 0; i < 2; i++) {
        struct rusage usage;
        (void)getrusage(whose[i], &usage);
        sum += (double)usage.ru_stime.tv_sec + (double)usage.ru_stime.tv_usec / 1e6;
    }
    return sum;
}

static bool test_is_wanted(enum test test) {
    switch (test) {
    case MAKE: return options.measure == NULL && !options.existing;
    case SCAN: return options.scan;
    case UPDATE: return options.update;
    case STATISTICS: return options.statistics;
    case MIX: return options.mix_seconds > 0;
    case DELETE: return options.delete;
    case MEASURE: return options.measure != NULL;
    case TEST_COUNT: break;
    }
    return false;
}

/* Where the tree is or will be. */
static bool root_find(struct run *run) {
    const bool is_measured = options.measure != NULL;
    const char *given = is_measured ? options.measure : options.directory;
    char directory[PATH_MAX];
    if (realpath(given, directory) == NULL) {
        fail("directory %s: %s", given, strerror(errno));
    } else if (snprintf(run->root, PATH_MAX, "%s%s", directory, is_measured ? "" : "/mdmark.tree") >= PATH_MAX) {
        fail("the name of the working directory is too long");
    }
    return job_agree();
}

/* Room for what subprocesses count; NULL: it has `fail`ed, or there is no mix. */
static struct mixed *mixed_make(int64_t processes) {
    if (options.mix_seconds == 0) return NULL;
    struct mixed *mixed = calloc((size_t)(processes * options.mix_processes), sizeof *mixed);
    if (mixed == NULL) fail("no memory for the results of the mix");
    return mixed;
}

static bool mix_and_gather(struct run *run, struct result *own) {
    struct mixed *mixed = mixed_make(1);
    if (job.rank == 0) run->mixed = mixed_make(job.count);
    bool is_good = job_agree() && mix_run(run, own, mixed);
    if (is_good) {
        const int count = (int)options.mix_processes * MIXED_DOUBLES;
        job_gather((const double *)mixed, count, (double *)run->mixed);
    }
    free(mixed);
    return is_good;
}

static bool test_run(struct run *run, enum test test) {
    struct result own;
    if (job.rank == 0) {
        run->results[run->test_count] = calloc((size_t)job.count, sizeof own);
        if (run->results[run->test_count] == NULL) fail("no memory for the results of %d processes", job.count);
    }
    if (!job_agree()) return false;
    const bool is_good = test == MAKE  ? make_run(run, &own)
                         : test == MIX ? mix_and_gather(run, &own)
                                       : walk_run(run, test, &own);
    if (!is_good) return false;
    job_gather((const double *)&own, RESULT_DOUBLES, (double *)run->results[run->test_count]);
    run->tests[run->test_count++] = test;
    return true;
}

static bool tests_run(struct run *run) {
    for (int test = 0; test < TEST_COUNT; test++) {
        if (test_is_wanted((enum test)test) && !test_run(run, (enum test)test)) return false;
    }
    return true;
}

/* Removes the tree that is not to be kept; process 0. */
static void tree_end(struct run *run) {
    if (!run->made || options.keep || job.rank != 0) return;
    if (!tree_remove(run->root, NULL)) fail("cannot remove %s: %s", run->root, strerror(errno));
    run->made = false;
}

/* --out: appears when all is well, process 0. */
static void output_write(const struct run *run) {
    FILE *to = fopen(options.output, "wxe");
    if (to == NULL) {
        fail("cannot make the file %s: %s", options.output, strerror(errno));
        return;
    }
    cleaner_expect(options.output, LEFT_FILE);
    profile_write(to, run->counts);
    const bool is_bad = fflush(to) != 0 || ferror(to) != 0;
    const int error = errno;
    if (fclose(to) != 0 || is_bad) {
        fail("cannot write %s: %s", options.output, strerror(error));
        (void)unlink(options.output);
    }
}

static void run_free(struct run *run) {
    for (int i = 0; i < TEST_COUNT; i++) {
        free(run->results[i]);
    }
    free(run->counts);
    free(run->mixed);
    plan_free(&run->plan);
}

/* The tree on paper; collective. */
static bool prepare(struct run *run, struct profile *profile) {
    if (!root_find(run)) return false;
    if (options.measure != NULL) return true;
    if (!profile_read(profile, options.distributions)) return false;
    (void)plan_make(&run->plan, profile);
    return job_agree();
}

/* --plan and --builtin. */
static int show(const struct run *run) {
    if (job.rank == 0) {
        if (options.builtin) {
            (void)fputs(PROFILE_BUILTIN, stdout);
        } else {
            plan_print(stdout, &run->plan);
        }
    }
    return outcome_printed();
}

static int measure_and_report(struct run *run, int argc, char **argv) {
    struct outcome outcome = outcome_of(OPTION_ROWS, &options, argc, argv);
    bool is_good = outcome_begin(&outcome, options.report_base, options.json) && tests_run(run);
    tree_end(run);
    /* A second time only if all went well so far: what failed has been said. */
    is_good = is_good && job_agree();
    if (outcome_is_due(&outcome, is_good)) {
        if (options.output != NULL) output_write(run);
        report_write(outcome.report.file, run, argc, argv);
        if (result_is_wanted(&outcome.result)) result_write(&outcome.result.json, run);
        outcome_close(&outcome);
    }
    return outcome_end(&outcome, is_good);
}

static int mdmark(int argc, char **argv) {
    static struct run run;
    static struct profile profile;
    int code = EXIT_RUN_FAILED;
    if (options.builtin) {
        code = show(&run);
    } else if (prepare(&run, &profile)) {
        code = options.plan ? show(&run) : measure_and_report(&run, argc, argv);
    }
    run_free(&run);
    profile_free(&profile);
    return code;
}

int main(int argc, char **argv) {
    static const struct program program = {
        .name = "mdmark",
        .help = HELP,
        .rows = OPTION_ROWS,
        .options = &options,
        .check = options_check,
        .run = mdmark,
    };
    return program_main(&program, argc, argv);
}
