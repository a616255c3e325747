#include "metabench.h"

static double rate(double files, double seconds) {
    return seconds > 0 ? files / seconds : 0;
}

/* What the table says of a test. */
struct sums {
    double files;
    int processes; /* That took part. */
    double elapsed;
};

static struct sums sums_of(const struct done *done) {
    struct sums sums = {0};
    for (int process = 0; process < job.count; process++) {
        const struct result *of = &done->results[process];
        sums.files += of->files;
        sums.processes += of->files > 0;
        if (of->elapsed > sums.elapsed) sums.elapsed = of->elapsed;
    }
    return sums;
}

static void write_header(FILE *to, const struct bench *bench) {
    const struct options *options = bench->options;
    (void)fprintf(to, "METABENCH\nProcesses: %d, of which %d take part; process 0 %s\n", job.count,
                  bench->participants, bench->place >= 0 ? "does" : "only prepares");
    (void)fprintf(to, "Files: %lld, of each process %lld; batches of %lld; append of %lld bytes\n",
                  (long long)options->files, (long long)bench->each, (long long)options->batch,
                  (long long)options->append_bytes);
    if (options->untar) {
        (void)fprintf(to, "Archive: %s, %lld files, %lld directories\n", bench->archive,
                      (long long)bench->archive_files, (long long)bench->archive_directories);
    }
    (void)fprintf(to, "Directory: %s\n\n", bench->directory);
}

static void write_tests(FILE *to, const struct bench *bench) {
    (void)fprintf(to,
                  "%-9s %8s %10s %14s %12s\n"
                  "--------- -------- ---------- -------------- ------------\n",
                  "Test", "Num_proc", "Files", "Elapsed s", "Files/s");
    for (int i = 0; i < bench->done_count; i++) {
        const struct done *done = &bench->done[i];
        const struct sums sums = sums_of(done);
        (void)fprintf(to, "%-9s %8d %10.0f %14.9f %12.2f\n", test_name(done->test), sums.processes, sums.files,
                      sums.elapsed, rate(sums.files, sums.elapsed));
    }
}

static void write_processes(FILE *to, const struct bench *bench) {
    (void)fprintf(to,
                  "\nPROCESS DETAILS\n%-9s %8s %10s %14s %12s\n"
                  "--------- -------- ---------- -------------- ------------\n",
                  "Test", "Process", "Files", "Seconds", "Files/s");
    for (int i = 0; i < bench->done_count; i++) {
        for (int process = 0; process < job.count; process++) {
            const struct result *of = &bench->done[i].results[process];
            if (of->files <= 0) continue;
            (void)fprintf(to, "%-9s %8d %10.0f %14.9f %12.2f\n", test_name(bench->done[i].test), process,
                          of->files, of->seconds, rate(of->files, of->seconds));
        }
    }
}

/* Files of a batch of Create-A; the last may be smaller. */
static int64_t batch_files(const struct bench *bench, int batch) {
    const int64_t rest = bench->options->files - batch * bench->options->batch;
    return rest < bench->options->batch ? rest : bench->options->batch;
}

static void write_batches(FILE *to, const struct bench *bench) {
    if (!bench->options->create) return;
    (void)fprintf(to,
                  "\nCREATE-A BATCHES\n%10s %10s %14s %12s\n"
                  "---------- ---------- -------------- ------------\n",
                  "First", "Files", "Seconds", "Files/s");
    for (int i = 0; i < bench->batch_count; i++) {
        const int64_t files = batch_files(bench, i);
        (void)fprintf(to, "%10lld %10lld %14.9f %12.2f\n", (long long)(i * bench->options->batch), (long long)files,
                      bench->batches[i], rate((double)files, bench->batches[i]));
    }
}

static void write_cleanups(FILE *to, const struct bench *bench) {
    (void)fprintf(to,
                  "\nCLEAN-UP\n%-9s %10s %14s %12s\n"
                  "--------- ---------- -------------- ------------\n",
                  "Test", "Names", "Seconds", "Names/s");
    for (int i = 0; i < bench->done_count; i++) {
        const struct done *done = &bench->done[i];
        (void)fprintf(to, "%-9s %10.0f %14.9f %12.2f\n", test_name(done->test), done->removed,
                      done->cleanup_seconds, rate(done->removed, done->cleanup_seconds));
    }
}

/* Files of one directory of a test. */
static int64_t files_of(const struct bench *bench, enum test test) {
    switch (test) {
    case CREATE_A:
    case STAT_B:
    case UTIME_B:
    case APPEND_B: return bench->options->files;
    case CREATE_C: return bench->each * bench->participants;
    case CREATE_B:
    case STAT_A:
    case UTIME_A:
    case APPEND_A: return bench->each;
    case UNTAR: return bench->archive_files;
    case TEST_COUNT: break;
    }
    return 0;
}

static void write_left(FILE *to, const struct bench *bench) {
    (void)fprintf(to,
                  "\nLEFT BEHIND\n%-16s %10s\n"
                  "---------------- ----------\n",
                  "Directory", "Files");
    for (int i = 0; i < bench->done_count; i++) {
        const enum test test = bench->done[i].test;
        for (int place = 0; place < bench->made[test]; place++) {
            char name[64];
            test_directory_name(test, place, name);
            (void)fprintf(to, "%-16s %10lld\n", name, (long long)files_of(bench, test));
        }
    }
}

void report_write(FILE *to, const struct bench *bench, int argc, char **argv) {
    write_header(to, bench);
    write_tests(to, bench);
    write_processes(to, bench);
    write_batches(to, bench);
    if (bench->options->cleanup) {
        write_cleanups(to, bench);
    } else {
        write_left(to, bench);
    }
    report_command(to, argc, argv);
}

/* Create-A's batches: rates of one process as its directory grows. */
static void json_batches(struct json *json, const struct bench *bench) {
    json_array(json, "batches");
    for (int i = 0; i < bench->batch_count && bench->options->create; i++) {
        const int64_t files = batch_files(bench, i);
        json_object(json, NULL);
        json_integer(json, "first", i * bench->options->batch);
        json_integer(json, "files", files);
        json_number(json, "seconds", bench->batches[i]);
        json_number(json, "files_per_second", rate((double)files, bench->batches[i]));
        json_end(json);
    }
    json_end(json);
}

static void json_test(struct json *json, const struct bench *bench, const struct done *done) {
    const struct sums sums = sums_of(done);
    json_object(json, NULL);
    json_text(json, "test", test_name(done->test));
    json_integer(json, "processes_taking_part", sums.processes);
    json_number(json, "files", sums.files);
    json_number(json, "elapsed_seconds", sums.elapsed);
    json_number(json, "files_per_second", rate(sums.files, sums.elapsed));
    json_array(json, "processes");
    for (int process = 0; process < job.count; process++) {
        const struct result *of = &done->results[process];
        if (of->files <= 0) continue;
        json_object(json, NULL);
        json_integer(json, "process", process);
        json_number(json, "files", of->files);
        json_number(json, "seconds", of->seconds);
        json_number(json, "elapsed_seconds", of->elapsed);
        json_number(json, "files_per_second", rate(of->files, of->seconds));
        json_end(json);
    }
    json_end(json);
    if (bench->options->cleanup) {
        json_number(json, "names_removed", done->removed);
        json_number(json, "cleanup_seconds", done->cleanup_seconds);
    }
    json_end(json);
}

void json_write(struct json *json, const struct bench *bench) {
    json_text(json, "directory", bench->directory);
    json_integer(json, "participants", bench->participants);
    json_integer(json, "files_per_process", bench->each);
    if (bench->options->untar) {
        json_text(json, "archive", bench->archive);
        json_integer(json, "archive_files", bench->archive_files);
        json_integer(json, "archive_directories", bench->archive_directories);
    }
    json_batches(json, bench);
    json_array(json, "results");
    for (int i = 0; i < bench->done_count; i++) {
        json_test(json, bench, &bench->done[i]);
    }
    json_end(json);
}
