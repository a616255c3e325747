#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "netio.h"

/* Between two looks for failures of other processes; and what a stranger is given to say who he is. */
enum { LOOK_MILLISECONDS = 50, HELLO_SECONDS = 5, ENDPOINT_BYTES = ADDRESS_BYTES + 16 };

/* The first thing that a client says on a connection. */
struct hello {
    uint64_t token;
    int32_t process;
    int32_t number;
};

/* The address of this server as the options say it; false: it has `fail`ed. */
static bool address_given(char address[ADDRESS_BYTES]) {
    const char *at = options.addresses;
    int count = 1;
    for (const char *comma = strchr(at, ','); comma != NULL; comma = strchr(comma + 1, ',')) {
        count++;
    }
    for (int skip = job.rank % count; skip > 0; skip--) {
        at = strchr(at, ',') + 1;
    }
    const size_t length = strcspn(at, ",");
    if (length == 0 || length >= ADDRESS_BYTES) {
        fail("-a %s: addresses are 1 to %d letters each", options.addresses, ADDRESS_BYTES - 1);
        return false;
    }
    memcpy(address, at, length);
    address[length] = '\0';
    return true;
}

static bool address_of_interface(char address[ADDRESS_BYTES]) {
    struct ifaddrs *all = NULL;
    bool is_found = false;
    if (getifaddrs(&all) != 0) {
        fail("cannot list the interfaces: %s", strerror(errno));
        return false;
    }
    for (const struct ifaddrs *one = all; one != NULL && !is_found; one = one->ifa_next) {
        if (one->ifa_addr == NULL || one->ifa_addr->sa_family != AF_INET) continue;
        if (strcmp(one->ifa_name, options.interface) != 0) continue;
        const struct sockaddr_in *own = (const struct sockaddr_in *)(const void *)one->ifa_addr;
        is_found = inet_ntop(AF_INET, &own->sin_addr, address, ADDRESS_BYTES) != NULL;
    }
    freeifaddrs(all);
    if (!is_found) fail("-I %s: this node has no such interface with an IPv4 address", options.interface);
    return is_found;
}

static void socket_tune(int socket) {
    const int on = 1;
    const int bytes = (int)options.buffer_bytes;
    if (!options.delay && setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0) {
        fail("cannot set TCP_NODELAY: %s", strerror(errno));
    }
    if (bytes > 0 && (setsockopt(socket, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes) != 0 ||
                      setsockopt(socket, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes) != 0)) {
        fail("cannot set socket buffers of %d bytes: %s", bytes, strerror(errno));
    }
}

/* A server's listening socket and, in run->address, where it is; negative: it has `fail`ed. */
static int server_listen(struct run *run) {
    struct sockaddr_in own = {.sin_family = AF_INET, .sin_addr = {.s_addr = htonl(INADDR_ANY)}};
    socklen_t size = sizeof own;
    char address[ADDRESS_BYTES] = "127.0.0.1";
    const int on = 1;
    if (options.interface != NULL && !address_of_interface(address)) return -1;
    if (options.addresses != NULL && !address_given(address)) return -1;
    /* Whoever cannot be meant cannot connect. */
    if (options.addresses == NULL) (void)inet_pton(AF_INET, address, &own.sin_addr);
    if (options.port > 0) own.sin_port = htons((uint16_t)(options.port + job.rank));
    const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (listener < 0) {
        fail("cannot make a socket: %s", strerror(errno));
        return -1;
    }
    (void)setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    socket_tune(listener);
    if (bind(listener, (struct sockaddr *)&own, sizeof own) != 0 || listen(listener, SOMAXCONN) != 0 ||
        getsockname(listener, (struct sockaddr *)&own, &size) != 0) {
        fail("cannot listen on port %d of %s: %s", ntohs(own.sin_port), address, strerror(errno));
        (void)close(listener);
        return -1;
    }
    if (strchr(address, ':') != NULL) {
        (void)snprintf(run->address, sizeof run->address, "%s", address);
    } else {
        (void)snprintf(run->address, sizeof run->address, "%s:%d", address, ntohs(own.sin_port));
    }
    return listener;
}

/* Waits until a socket is ready. False: it has `fail`ed, or another process has. */
static bool socket_wait(int socket, short what, double until, const char *for_what) {
    struct pollfd ready = {.fd = socket, .events = what};
    for (;;) {
        job_exchange_stops();
        if (job_should_stop()) return false;
        const int count = poll(&ready, 1, LOOK_MILLISECONDS);
        if (count > 0) return true;
        if (count < 0 && errno != EINTR) {
            fail("cannot wait for %s: %s", for_what, strerror(errno));
            return false;
        }
        if (now_seconds() > until) {
            fail("%s: nothing within %lld seconds", for_what, (long long)options.timeout);
            return false;
        }
    }
}

/* A connection to `endpoint`, address:port; negative: it has `fail`ed, or another process has. */
static int client_connect(const char *endpoint, int server) {
    char name[ENDPOINT_BYTES];
    struct addrinfo *found = NULL;
    const struct addrinfo wanted = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM};
    (void)snprintf(name, sizeof name, "%s", endpoint);
    char *colon = strrchr(name, ':');
    *colon = '\0';
    int error = getaddrinfo(name, colon + 1, &wanted, &found);
    if (error != 0) {
        fail("the address of server process %d, %s: %s", server, endpoint, gai_strerror(error));
        return -1;
    }
    const int own = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (own < 0) {
        fail("cannot make a socket: %s", strerror(errno));
        freeaddrinfo(found);
        return -1;
    }
    socket_tune(own);
    error = connect(own, found->ai_addr, found->ai_addrlen) == 0 ? 0 : errno;
    freeaddrinfo(found);
    char what[ENDPOINT_BYTES + 64];
    (void)snprintf(what, sizeof what, "connection to server process %d at %s", server, endpoint);
    if (error == EINPROGRESS) {
        socklen_t size = sizeof error;
        if (!socket_wait(own, POLLOUT, now_seconds() + (double)options.timeout, what)) {
            (void)close(own);
            return -1;
        }
        if (getsockopt(own, SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
    }
    if (error == 0) return own;
    fail("no %s: %s", what, strerror(error));
    (void)close(own);
    return -1;
}

static uint64_t connection_key(const struct run *run, int client, int server, int number) {
    return mix(mix(mix(run->token + (uint64_t)client) + (uint64_t)server) + (uint64_t)number);
}

/* Clients: to each server, round by round. */
static void clients_connect(struct run *run) {
    for (int number = 0; number < options.connections; number++) {
        for (int server = 0; server < run->servers; server++) {
            const int own = client_connect(run->endpoints + (size_t)server * ENDPOINT_BYTES, server);
            if (own < 0) return;
            struct connection *connection = &run->connections[run->connection_count++];
            connection->socket = own;
            connection->peer = server;
            connection->number = number;
            connection->key = connection_key(run, job.rank, server, number);
            const struct hello hello = {.token = run->token, .process = job.rank, .number = number};
            if (send(own, &hello, sizeof hello, MSG_NOSIGNAL) != (ssize_t)sizeof hello) {
                fail("cannot greet server process %d: %s", server, strerror(errno));
                return;
            }
        }
    }
}

/* Who is there? False: a stranger, who is left alone, or it has `fail`ed. */
static bool hello_read(const struct run *run, int socket, struct hello *hello) {
    size_t have = 0;
    const double until = now_seconds() + HELLO_SECONDS;
    struct pollfd ready = {.fd = socket, .events = POLLIN};
    while (have < sizeof *hello && now_seconds() < until && !job_should_stop()) {
        job_exchange_stops();
        if (poll(&ready, 1, LOOK_MILLISECONDS) <= 0) continue;
        const ssize_t size = recv(socket, (char *)hello + have, sizeof *hello - have, MSG_DONTWAIT);
        if (size == 0) return false;
        if (size < 0 && errno != EINTR && errno != EAGAIN) return false;
        if (size > 0) have += (size_t)size;
    }
    return have == sizeof *hello && hello->token == run->token && hello->process >= run->servers &&
           hello->process < job.count;
}

static void clients_accept(struct run *run, int listener, int expected) {
    const double until = now_seconds() + (double)options.timeout;
    while (run->connection_count < expected) {
        char what[128];
        (void)snprintf(what, sizeof what, "waiting for clients: %d of %d connections are there",
                       run->connection_count, expected);
        if (!socket_wait(listener, POLLIN, until, what)) return;
        const int own = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (own < 0 && (errno == EINTR || errno == EAGAIN || errno == ECONNABORTED)) continue;
        if (own < 0) {
            fail("cannot accept a connection: %s", strerror(errno));
            return;
        }
        struct hello hello;
        if (!hello_read(run, own, &hello)) {
            (void)close(own);
            continue;
        }
        socket_tune(own);
        struct connection *connection = &run->connections[run->connection_count++];
        connection->socket = own;
        connection->peer = hello.process;
        connection->number = hello.number;
        connection->key = connection_key(run, hello.process, job.rank, hello.number);
    }
}

/* Loopback reaches nobody on another node. */
static void loopback_check(void) {
    char first[256] = "";
    char own[256] = "";
    if (gethostname(own, sizeof own - 1) != 0) return;
    memcpy(first, own, sizeof first);
    job_broadcast(first, sizeof first);
    if (options.addresses == NULL && options.interface == NULL && strcmp(first, own) != 0) {
        fail("processes are on several nodes (%s, %s): give -I or -a, loopback does not connect them", first, own);
    }
}

bool connections_make(struct run *run) {
    const int clients = job.count - run->servers;
    const int expected = (int)options.connections * (run->is_server ? clients : run->servers);
    loopback_check();
    if (job.rank == 0 && getrandom(&run->token, sizeof run->token, 0) != (ssize_t)sizeof run->token) {
        fail("no random numbers: %s", strerror(errno));
    }
    if (expected > CONNECTIONS_MAX) {
        fail("%d connections of a process are more than %d", expected, CONNECTIONS_MAX);
    } else {
        run->connections = calloc((size_t)expected, sizeof *run->connections);
        if (run->connections == NULL) fail("no memory for %d connections", expected);
    }
    if (!job_agree()) return false;
    job_broadcast(&run->token, sizeof run->token);
    const int listener = run->is_server ? server_listen(run) : -1;
    size_t size = 0;
    /* Servers are the first processes: their addresses are one after another. */
    bool is_good = job_agree();
    is_good = is_good && job_share(run->address, run->is_server ? ENDPOINT_BYTES : 0, (size_t)1 << 30,
                                   &run->endpoints, &size);
    if (is_good) {
        if (run->is_server) {
            clients_accept(run, listener, expected);
        } else {
            clients_connect(run);
        }
        job_exchange_stops();
        is_good = job_agree();
    }
    if (listener >= 0) (void)close(listener);
    return is_good;
}

void blocks_make(struct run *run, int64_t size) {
    const size_t bytes = ((size_t)size + 4095) / 4096 * 4096;
    for (int i = 0; i < run->connection_count; i++) {
        struct connection *connection = &run->connections[i];
        free(connection->out);
        free(connection->in);
        connection->out = aligned_alloc(4096, bytes);
        connection->in = aligned_alloc(4096, bytes);
        if (connection->latencies == NULL && !run->is_server) {
            connection->latencies = calloc(KIND_COUNT, sizeof *connection->latencies);
        }
        if (connection->out == NULL || connection->in == NULL ||
            (connection->latencies == NULL && !run->is_server)) {
            fail("no memory for blocks of %lld bytes, two for each of %d connections", (long long)size,
                 run->connection_count);
            return;
        }
        memset(connection->out, 'n', bytes);
        memset(connection->in, 0, bytes);
    }
}

void connections_end(struct run *run) {
    for (int i = 0; i < run->connection_count; i++) {
        struct connection *connection = &run->connections[i];
        (void)close(connection->socket);
        free(connection->out);
        free(connection->in);
        free(connection->latencies);
    }
    free(run->connections);
    free(run->endpoints);
}
