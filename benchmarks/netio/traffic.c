#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

#include "../common/crew.h"
#include "netio.h"

/* Between two looks for failures of other processes. */
enum { LOOK_MILLISECONDS = 100 };

/* What a client sends; a write is followed by its block. In the byte order of the machine. */
struct request {
    uint32_t magic;
    uint32_t kind;
    uint64_t number;
    uint64_t bytes;
    uint64_t rest[5];
};
/* What a server sends; the answer to a read is followed by its block. */
struct answer {
    uint32_t magic;
    uint32_t kind;
    uint64_t number;
    uint64_t bytes;
    uint64_t rest;
};
_Static_assert(sizeof(struct request) == 64 && sizeof(struct answer) == 32, "as --help says");

enum { MAGIC = 0x6e657469, END = KIND_COUNT };

struct test {
    struct run *run;
    int64_t size;
    int64_t write_percent;
    double end; /* Of new requests, with -t; set at the gate. */
};

/* -C: what is in the block of a request, the same at both ends. */
static struct stream block_stream(const struct connection *connection, uint64_t number, uint32_t kind) {
    return (struct stream){.state = mix(connection->key + 2 * number + kind)};
}

static void block_fill(const struct connection *connection, uint64_t number, uint32_t kind, int64_t size) {
    struct stream stream = block_stream(connection, number, kind);
    uint64_t *words = (uint64_t *)(void *)connection->out;
    for (int64_t i = 0; i < (size + 7) / 8; i++) {
        words[i] = stream_next(&stream);
    }
}

/* `fail`s with the first byte that is wrong. */
static void block_check(const struct connection *connection, uint64_t number, uint32_t kind, int64_t size) {
    struct stream stream = block_stream(connection, number, kind);
    for (int64_t at = 0; at < size; at += 8) {
        const uint64_t word = stream_next(&stream);
        const uint8_t *expected = (const uint8_t *)&word;
        const int64_t rest = size - at < 8 ? size - at : 8;
        if (memcmp(connection->in + at, expected, (size_t)rest) == 0) continue;
        int64_t byte = 0;
        while (connection->in[at + byte] == expected[byte]) {
            byte++;
        }
        fail("-C: byte %lld of the block of %s %llu from process %d, connection %d, is %d and not %d",
             (long long)(at + byte), kind == READ ? "read" : "write", (unsigned long long)number, connection->peer,
             connection->number, connection->in[at + byte], expected[byte]);
        return;
    }
}

static void peer_failed(const struct connection *connection, const char *what, int error) {
    fail("%s process %d, connection %d: %s", what, connection->peer, connection->number,
         error == 0 ? "it was closed there" : strerror(error));
}

/* Waits for a socket. False: it has `fail`ed, or another process has. */
static bool ready_wait(const struct connection *connection, short what, double since) {
    struct pollfd ready = {.fd = connection->socket, .events = what};
    for (;;) {
        if (job_should_stop()) return false;
        const int count = poll(&ready, 1, LOOK_MILLISECONDS);
        if (count > 0) return true;
        if (count < 0 && errno != EINTR) {
            peer_failed(connection, "waiting for", errno);
            return false;
        }
        if (now_seconds() - since > (double)options.timeout) {
            fail("process %d, connection %d: nothing moves for %lld seconds", connection->peer, connection->number,
                 (long long)options.timeout);
            return false;
        }
    }
}

/* Sends what it can of a head and a block, of which `*done` bytes are sent. False: it has `fail`ed. */
static bool send_some(const struct connection *connection, const void *head, size_t head_size, size_t block_size,
                      size_t *done) {
    struct iovec parts[2] = {{(void *)(uintptr_t)head, head_size}, {connection->out, block_size}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = block_size > 0 ? 2 : 1};
    if (*done < head_size) {
        parts[0].iov_base = (char *)parts[0].iov_base + *done;
        parts[0].iov_len -= *done;
    } else {
        message.msg_iov = &parts[1];
        message.msg_iovlen = 1;
        parts[1].iov_base = connection->out + (*done - head_size);
        parts[1].iov_len -= *done - head_size;
    }
    const ssize_t size = sendmsg(connection->socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (size >= 0) {
        *done += (size_t)size;
        return true;
    }
    if (errno == EAGAIN || errno == EINTR) return true;
    peer_failed(connection, "sending to", errno);
    return false;
}

/* Receives what it can of `size` bytes, of which `*done` are there. False: it has `fail`ed. */
static bool receive_some(const struct connection *connection, void *to, size_t size, size_t *done) {
    const ssize_t count = recv(connection->socket, (char *)to + *done, size - *done, MSG_DONTWAIT);
    if (count > 0) {
        *done += (size_t)count;
        return true;
    }
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return true;
    peer_failed(connection, "receiving from", count == 0 ? 0 : errno);
    return false;
}

/* The same for a server, which waits for all of it. */
static bool receive_all(const struct connection *connection, void *to, size_t size) {
    size_t done = 0;
    double since = now_seconds();
    while (done < size) {
        const size_t before = done;
        if (!receive_some(connection, to, size, &done)) return false;
        if (done > before) {
            since = now_seconds();
        } else if (!ready_wait(connection, POLLIN, since)) {
            return false;
        }
    }
    return true;
}

static bool send_all(const struct connection *connection, const struct answer *answer, size_t block_size) {
    size_t done = 0;
    double since = now_seconds();
    while (done < sizeof *answer + block_size) {
        const size_t before = done;
        if (!send_some(connection, answer, sizeof *answer, block_size, &done)) return false;
        if (done > before) {
            since = now_seconds();
        } else if (!ready_wait(connection, POLLOUT, since)) {
            return false;
        }
    }
    return true;
}

/* One connection at the server: a request, its answer, and so on. */
static void serve(struct connection *connection, const struct test *test) {
    while (!job_should_stop()) {
        struct request request;
        if (!receive_all(connection, &request, sizeof request)) return;
        if (request.magic != MAGIC || request.kind > END || request.bytes != (uint64_t)test->size) {
            fail("process %d, connection %d: what came is no request", connection->peer, connection->number);
            return;
        }
        if (request.kind == END) return;
        const bool is_write = request.kind == WRITE;
        if (is_write) {
            if (!receive_all(connection, connection->in, (size_t)test->size)) return;
            if (options.check) block_check(connection, request.number, WRITE, test->size);
        } else if (options.check) {
            block_fill(connection, request.number, READ, test->size);
        }
        const struct answer answer = {
            .magic = MAGIC, .kind = request.kind, .number = request.number, .bytes = request.bytes};
        if (!send_all(connection, &answer, is_write ? 0 : (size_t)test->size)) return;
        connection->requests[request.kind]++;
        connection->bytes[request.kind] += (double)test->size;
    }
}

/* One connection at the client. */
struct exchange {
    struct connection *connection;
    const struct test *test;
    struct stream chance;
    double begins[QUEUE_MAX];    /* Of requests that are under way, by number. */
    uint32_t kinds[QUEUE_MAX];
    uint64_t sent;               /* Numbers of requests: begun, and answered. */
    uint64_t answered;
    struct request request;      /* That is being sent. */
    size_t request_done;
    bool is_sending;
    struct answer answer;        /* That is coming. */
    size_t answer_done;
    size_t block_done;
    bool is_ending;              /* END has been begun. */
};

static size_t request_block(const struct exchange *exchange) {
    return exchange->request.kind == WRITE ? (size_t)exchange->test->size : 0;
}

static bool has_more(const struct exchange *exchange) {
    if (options.requests > 0) return exchange->sent < (uint64_t)options.requests;
    return now_seconds() < exchange->test->end;
}

/* Begins the next request, if there is one and the queue has room; the last one says that all are answered. */
static void request_begin(struct exchange *exchange) {
    const uint64_t under_way = exchange->sent - exchange->answered;
    if (exchange->is_sending || exchange->is_ending || under_way >= (uint64_t)options.queue) return;
    uint32_t kind = END;
    if (has_more(exchange)) {
        kind = stream_below(&exchange->chance, 100) < (uint64_t)exchange->test->write_percent ? WRITE : READ;
    } else if (under_way > 0) {
        return;
    }
    exchange->request = (struct request){
        .magic = MAGIC, .kind = kind, .number = exchange->sent, .bytes = (uint64_t)exchange->test->size};
    exchange->request_done = 0;
    exchange->is_sending = true;
    if (kind == END) {
        exchange->is_ending = true;
        return;
    }
    if (kind == WRITE && options.check) {
        block_fill(exchange->connection, exchange->sent, WRITE, exchange->test->size);
    }
    exchange->kinds[exchange->sent % QUEUE_MAX] = kind;
    exchange->begins[exchange->sent % QUEUE_MAX] = now_seconds();
    exchange->sent++;
}

/* An answer is complete. False: it has `fail`ed. */
static bool answer_end(struct exchange *exchange) {
    struct connection *connection = exchange->connection;
    const uint32_t kind = exchange->answer.kind;
    if (kind == READ && options.check) block_check(connection, exchange->answered, READ, exchange->test->size);
    latency_add(&connection->latencies[kind], now_seconds() - exchange->begins[exchange->answered % QUEUE_MAX]);
    connection->requests[kind]++;
    connection->bytes[kind] += (double)exchange->test->size;
    exchange->answered++;
    exchange->answer_done = 0;
    exchange->block_done = 0;
    return !job_should_stop();
}

/* Takes what has come. False: it has `fail`ed. */
static bool answer_receive(struct exchange *exchange) {
    struct connection *connection = exchange->connection;
    struct answer *answer = &exchange->answer;
    if (exchange->answer_done < sizeof *answer) {
        if (!receive_some(connection, answer, sizeof *answer, &exchange->answer_done)) return false;
        if (exchange->answer_done < sizeof *answer) return true;
        if (answer->magic != MAGIC || answer->number != exchange->answered ||
            answer->kind != exchange->kinds[exchange->answered % QUEUE_MAX] ||
            answer->bytes != (uint64_t)exchange->test->size) {
            fail("process %d, connection %d: what came is no answer to request %llu", connection->peer,
                 connection->number, (unsigned long long)exchange->answered);
            return false;
        }
    }
    const size_t block = answer->kind == READ ? (size_t)exchange->test->size : 0;
    if (exchange->block_done < block) {
        if (!receive_some(connection, connection->in, block, &exchange->block_done)) return false;
    }
    return exchange->block_done < block || answer_end(exchange);
}

/* Bytes that have moved, either way: whether anything moves. */
static uint64_t moved(const struct exchange *exchange) {
    return exchange->sent + exchange->answered + exchange->request_done + exchange->answer_done + exchange->block_done;
}

/* One connection at the client: it sends and receives at the same time, so that nobody waits in a circle. */
static void ask(struct connection *connection, const struct test *test) {
    struct exchange exchange = {
        .connection = connection,
        .test = test,
        /* Not from the key: the same in each run. */
        .chance = {.state = mix(mix(mix((uint64_t)job.rank) + (uint64_t)connection->peer) + (uint64_t)connection->number)},
    };
    double since = now_seconds();
    while (!job_should_stop()) {
        const uint64_t before = moved(&exchange);
        request_begin(&exchange);
        if (exchange.is_sending) {
            const size_t block = request_block(&exchange);
            if (!send_some(connection, &exchange.request, sizeof exchange.request, block, &exchange.request_done)) {
                return;
            }
            exchange.is_sending = exchange.request_done < sizeof exchange.request + block;
        }
        if (exchange.is_ending && !exchange.is_sending) return;
        const bool is_waiting = exchange.sent > exchange.answered;
        if (is_waiting && !answer_receive(&exchange)) return;
        if (moved(&exchange) != before) {
            since = now_seconds();
            continue;
        }
        if (!ready_wait(connection, (short)((is_waiting ? POLLIN : 0) | (exchange.is_sending ? POLLOUT : 0)), since)) {
            return;
        }
    }
}

static void work(void *context, int index) {
    const struct test *test = context;
    struct connection *connection = &test->run->connections[index];
    if (test->run->is_server) {
        serve(connection, test);
    } else {
        ask(connection, test);
    }
}

static void clock_start(void *context) {
    struct test *test = context;
    test->end = now_seconds() + (double)options.seconds;
}

bool test_run(struct run *run, int64_t size, int64_t write_percent, struct result *own, struct latency *latencies) {
    struct test test = {.run = run, .size = size, .write_percent = write_percent};
    struct crew crew = {.count = run->connection_count, .work = work, .at_gate = clock_start, .context = &test};
    for (int i = 0; i < run->connection_count; i++) {
        struct connection *connection = &run->connections[i];
        memset(connection->requests, 0, sizeof connection->requests);
        memset(connection->bytes, 0, sizeof connection->bytes);
        if (!run->is_server) memset(connection->latencies, 0, KIND_COUNT * sizeof *connection->latencies);
    }
    *own = (struct result){.is_server = run->is_server};
    memset(latencies, 0, KIND_COUNT * sizeof *latencies);
    if (!crew_run(&crew)) return false;
    for (int kind = 0; kind < KIND_COUNT; kind++) {
        for (int i = 0; i < run->connection_count; i++) {
            const struct connection *connection = &run->connections[i];
            own->requests[kind] += connection->requests[kind];
            own->bytes[kind] += connection->bytes[kind];
            if (!run->is_server) latency_merge(&latencies[kind], &connection->latencies[kind]);
        }
        own->latencies[kind] = latency_summary(&latencies[kind]);
    }
    own->seconds = crew.end - crew.begin;
    own->user_seconds = crew.cpu.user;
    own->system_seconds = crew.cpu.system;
    own->elapsed = crew.elapsed;
    return true;
}
