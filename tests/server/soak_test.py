"""Faults and a long load against the real server, with the figures that it must keep.

soak_test.py FORESAIL MODEL [MINUTES of the last part, 10] [NAMES of parts]   (./check --soak runs it)
"""

import asyncio
import json
import random
import re
import resource
import statistics
import sys
import time

import foresail_serve

MINUTES = float(sys.argv[3]) if len(sys.argv) > 3 else 10.0
ONLY = sys.argv[4:]
HARD = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (HARD, HARD))


class Failed(Exception):
    pass


def check(holds, what):
    if not holds:
        raise Failed(what)


def message(path, fields=None, method="POST"):
    body = b"" if fields is None else json.dumps(fields).encode()
    return (f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n").encode() + body


def endless(tokens=900, prompt="Once", stream=True):
    return message("/v1/completions", {"prompt": prompt, "max_tokens": tokens, "stream": stream,
                                       "ignore_eos": True, "return_token_ids": True})


class Server(foresail_serve.Server):
    all = []

    def __init__(self, *flags):
        if "--context-length" not in flags:
            flags += ("--context-length", "1024")
        super().__init__("--speculative-algorithm", "MTP", *flags)
        Server.all.append(self.process)
        self.port = int(self.url.rsplit(":", 1)[1])

    async def ended(self, seconds=60):
        end = time.monotonic() + seconds
        while self.process.poll() is None and time.monotonic() < end:
            await asyncio.sleep(0.02)
        self.process.stdout.close()
        return self.process.poll()

    async def open(self, **options):
        return await asyncio.open_connection("127.0.0.1", self.port, **options)

    async def ask(self, request):
        """Status and body of a whole answer, on a connection of its own."""
        reader, writer = await self.open()
        try:
            return await ask_on(reader, writer, request)
        finally:
            writer.close()

    async def metrics(self):
        return Metrics((await self.ask(message("/metrics", method="GET")))[1].decode())

    async def settle(self, seconds=1.0):
        """Seconds until no request owns a page; fails after so long."""
        start = time.monotonic()
        while True:
            metrics = await self.metrics()
            if metrics("kv_pages", "used") + metrics("kv_pages", "in_flight") == 0 \
                    and metrics("num_requests_waiting") == 0:
                return time.monotonic() - start
            check(time.monotonic() - start < seconds, f"pages in use after {seconds} s")
            await asyncio.sleep(0.01)


class Metrics:
    def __init__(self, text):
        self.lines = text.splitlines()

    def __call__(self, name, label=""):
        name = name if name.startswith("process") else "foresail:" + name
        return sum(float(line.rsplit(" ", 1)[1]) for line in self.lines
                   if line.startswith(name + "{") and label in line)


async def ask_on(reader, writer, request):
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    status = int(head.split()[1])
    length = re.search(rb"(?i)content-length: (\d+)", head)
    if length:
        return status, await reader.readexactly(int(length[1]))
    body = b""
    while True:
        size = int(await reader.readline(), 16)
        body += await reader.readexactly(size)
        await reader.readexactly(2)
        if size == 0:
            return status, body


def tokens_in(events):
    return sum(len(json.loads(part)["choices"][0]["token_ids"])
               for part in re.findall(rb"data: (\{.*\})", events))


def p99(values):
    return sorted(values)[int(0.99 * (len(values) - 1))]


async def idle_connections():
    """5,000 keep-alive sockets: a new request takes < 50 ms (p99), <= 40 kB of memory each."""
    count = min(5000, HARD - 200)
    server = Server("--keep-alive-timeout", "600")
    one = message("/v1/completions", {"prompt": "Once", "max_tokens": 1})

    async def latencies(count):
        times = []
        for _ in range(count):
            start = time.monotonic()
            check((await server.ask(one))[0] == 200, "a request")
            times.append(time.monotonic() - start)
        return times

    await latencies(20)
    alone = await latencies(200)
    before = (await server.metrics())("process_resident_memory_bytes")
    idle = [await server.open() for _ in range(count)]
    for reader, writer in idle[::2]:  # half of them have been used
        check((await ask_on(reader, writer, message("/livez", method="GET")))[0] == 200, "livez")
    times = await latencies(200)
    metrics = await server.metrics()
    check(metrics("http_connections", "idle") >= count, "connections were closed")
    each = (metrics("process_resident_memory_bytes") - before) / count
    figures = f"{count} sockets, p99 {1e3 * p99(times):.1f} ms (without them {1e3 * p99(alone):.1f}), {each / 1e3:.1f} kB each"
    for _, writer in idle:
        writer.close()
    server.term()
    check(await server.ended() == 0, "exit status")
    check(p99(times) < 0.05 and each <= 40e3, figures)
    return figures


async def active_streams():
    """256 streams at once: no error; when the first ends, none has less than half of the most."""
    count = 256
    server = Server("--max-running-requests", str(count), "--context-length", "256",
                    "--max-total-tokens", str(count * 256))
    tokens = [0] * count
    snapshot = []

    async def stream(i):
        reader, writer = await server.open()
        writer.write(endless(120, f"Once {i}"))
        line = b""
        while line != b"data: [DONE]\n":
            line = await reader.readline()
            check(line, "a stream was cut")
            tokens[i] += tokens_in(line)
        check(tokens[i] == 120, f"{tokens[i]} tokens instead of 120")
        if not snapshot:
            snapshot.extend(tokens)
        writer.close()

    await asyncio.gather(*(stream(i) for i in range(count)))
    fairness = max(snapshot) / max(1, min(snapshot))
    server.term()
    check(await server.ended() == 0, "exit status")
    figures = f"{count} streams, most/least tokens {fairness:.2f}"
    check(fairness <= 2, figures)
    return figures


async def disconnect_storm():
    """10,000 closes at a random byte: pages are back in < 1 s, and every lost answer is counted."""
    server = Server("--max-queued-requests", "2000")
    start = await server.metrics()
    draw = random.Random(1)
    lost = 0

    async def one():
        nonlocal lost
        reader, writer = await server.open()
        request = endless(900, "Once " + str(draw.randrange(50)))
        kind = draw.randrange(3)
        if kind == 0:
            writer.write(request[:draw.randrange(len(request))])
        else:
            writer.write(request)
            lost += 1
            if kind == 2:
                await reader.read(1 + draw.randrange(2000))
        writer.close()
        await writer.wait_closed()

    for _ in range(10000 // 50):
        await asyncio.gather(*(one() for _ in range(50)))
    waited = await server.settle()
    for _ in range(100):
        end = await server.metrics()
        counted = end("client_disconnects_total") - start("client_disconnects_total")
        if counted == lost:
            break
        await asyncio.sleep(0.05)
    check(end("kv_pages", "free") + end("kv_pages", "cached")
          == start("kv_pages", "free") + start("kv_pages", "cached"), "pages were lost")
    check((await server.ask(endless(5, stream=False)))[0] == 200, "a request after the storm")
    server.term()
    check(await server.ended() == 0, "exit status")
    figures = f"10000 closes, pages back after {1e3 * waited:.0f} ms, {counted:.0f} of {lost} counted"
    check(counted == lost, figures)
    return figures


async def slow_readers():
    """50 clients that read 10 bytes a second: the time per token of others grows by < 5 %."""
    server = Server("--max-running-requests", "56")

    async def per_token():
        times = []
        for _ in range(15):
            start = time.monotonic()
            await server.ask(endless(100, stream=False))
            times.append((time.monotonic() - start) / 100)
        return statistics.median(times)

    await per_token()
    before = await per_token()
    slow = [await server.open(limit=256) for _ in range(50)]
    for reader, writer in slow:
        writer.write(endless(900))
    end = False

    async def trickle(reader):
        while not end and await reader.read(10):
            await asyncio.sleep(1)

    readers = [asyncio.ensure_future(trickle(reader)) for reader, _ in slow]
    for _ in range(6000):  # until the engine has done its part for them
        if (await server.metrics())("num_requests_running") == 0:
            break
        await asyncio.sleep(0.05)
    beside = await per_token()
    again = await per_token()
    end = True
    for _, writer in slow:
        writer.close()
    await asyncio.gather(*readers, return_exceptions=True)
    await server.settle()
    server.term()
    check(await server.ended() == 0, "exit status")
    ratio = min(beside, again) / before
    figures = f"time per token {1e3 * before:.2f} ms alone, {ratio:.3f} of that beside 50"
    check(ratio < 1.05, figures)
    return figures


async def slow_senders():
    """1,000 sockets that send a byte a second: closed after 10 s, and nobody else notices."""
    server = Server()
    slow = [await server.open() for _ in range(min(1000, HARD - 200))]
    closed = []

    async def trickle(reader, writer):
        start = time.monotonic()
        for byte in message("/v1/completions", {"prompt": "x"}):
            writer.write(bytes([byte]))
            try:
                head = await asyncio.wait_for(reader.read(64), 1)
            except asyncio.TimeoutError:
                continue
            check(head.startswith(b"HTTP/1.1 408"), head)
            closed.append(time.monotonic() - start)
            return

    tasks = [asyncio.ensure_future(trickle(*pair)) for pair in slow]
    times = []
    while not all(task.done() for task in tasks):
        begin = time.monotonic()
        check((await server.ask(endless(4, stream=False)))[0] == 200, "a request beside them")
        times.append(time.monotonic() - begin)
        await asyncio.sleep(0.2)
    await asyncio.gather(*tasks)
    for _, writer in slow:
        writer.close()
    server.term()
    check(await server.ended() == 0, "exit status")
    figures = (f"{len(closed)} closed after {min(closed):.1f} to {max(closed):.1f} s, "
               f"requests beside them p99 {1e3 * p99(times):.0f} ms")
    check(len(closed) == len(slow) and max(closed) < 13, figures)
    return figures


async def termination():
    """SIGTERM under 64 streams, 50 times: new requests get 503, streams finish, exit status 0."""
    longest = at_once = 0.0
    tokens = 60  # enough for all 64 to run at once before the first ends
    for _ in range(50):
        server = Server("--max-running-requests", "64", "--context-length", "256",
                        "--max-total-tokens", str(64 * 256))

        async def stream(i):
            reader, writer = await server.open()
            status, body = await ask_on(reader, writer, endless(tokens, f"Once {i}"))
            writer.close()
            check(status == 200 and body.endswith(b"data: [DONE]\n\n"), body[-200:])
            check(tokens_in(body) == tokens, "a stream is not whole")

        kept = await server.open()
        tasks = [asyncio.ensure_future(stream(i)) for i in range(64)]
        while (await server.metrics())("num_requests_running") < 64:
            check(not all(task.done() for task in tasks), "too short to be stopped")
            await asyncio.sleep(0.005)
        server.term()
        start = time.monotonic()
        while (await server.ask(message("/ready", method="GET")))[0] == 200:
            check(time.monotonic() - start < 1, "ready 1 s after SIGTERM")
        at_once = max(at_once, time.monotonic() - start)
        status, body = await ask_on(*kept, endless(1, stream=False))
        check(status == 503 and b"shutting_down" in body, body)
        await asyncio.gather(*tasks)
        check(await server.ended(30) == 0, "exit status")
        longest = max(longest, time.monotonic() - start)
        kept[1].close()
    return (f"50 times 64 streams, refusing after at most {1e3 * at_once:.0f} ms, at an end after "
            f"at most {longest:.2f} s")


async def soak():
    """Mixed requests, a fifth of them left: memory < 1 MB in 10 minutes; sockets and pages as before."""
    server = Server()
    draw = random.Random(2)
    done = {"ended": 0, "left": 0}
    end = time.monotonic() + 60 * MINUTES

    async def one():
        prompt = " ".join(draw.choice(["the", "old", "captain", "sea", "a", "house"])
                          for _ in range(draw.randrange(1, 200)))
        fields = {"max_tokens": draw.randrange(1, 60), "temperature": draw.choice([0, 0.8]),
                  "stream": draw.random() < 0.5}
        kind = draw.randrange(4)
        if kind == 0:
            request = message("/v1/chat/completions",
                              fields | {"messages": [{"role": "user", "content": prompt}]})
        elif kind == 1:
            request = message("/v1/completions", fields | {"prompt": prompt, "n": 2})
        elif kind == 2:
            request = message("/v1/completions",
                              fields | {"prompt": prompt, "regex": "[a-z ]{1,40}"})
        else:
            request = message("/v1/completions", fields | {"prompt": prompt, "logprobs": 2})
        if draw.random() < 0.2:
            reader, writer = await server.open()
            writer.write(request)
            await asyncio.sleep(draw.random() * 0.05)
            writer.close()
            done["left"] += 1
            return
        status, body = await server.ask(request)
        check(status == 200, body)
        done["ended"] += 1

    async def worker():
        while time.monotonic() < end:
            await one()

    async def sample():
        """Memory after the caches have filled, then every ten seconds."""
        samples = []
        while time.monotonic() < end:
            await asyncio.sleep(min(10, max(0.1, end - time.monotonic())))
            metrics = await server.metrics()
            samples.append((time.monotonic(), metrics("process_resident_memory_bytes")))
        return samples

    await server.ask(endless(5, stream=False))
    start = await server.metrics()
    results = await asyncio.gather(sample(), *(worker() for _ in range(12)))
    samples = results[0][len(results[0]) // 4:]
    await server.settle()
    for _ in range(20):  # the last answers may be on their way
        status, body = await server.ask(message("/flush_cache", {}))
        if status == 200:
            break
        await asyncio.sleep(0.05)
    check(status == 200, body)
    await asyncio.sleep(0.2)
    metrics = await server.metrics()
    check(metrics("kv_pages", "free") == start("kv_pages", "free") + start("kv_pages", "cached"),
          "pages were lost")
    check(metrics("process_open_fds") <= start("process_open_fds") + 1, "sockets were lost")
    middle = statistics.mean(t for t, _ in samples)
    spread = sum((t - middle) ** 2 for t, _ in samples)
    slope = sum((t - middle) * v for t, v in samples) / spread * 600 if spread else 0.0
    server.term()
    check(await server.ended() == 0, "exit status")
    figures = (f"{done['ended']} requests and {done['left']} left in {MINUTES:g} min, memory "
               f"{samples[-1][1] / 1e6:.1f} MB, {slope / 1e6:+.2f} MB in 10 min")
    check(slope < 1e6, figures)
    return figures


def main():
    failed = 0
    for part in (idle_connections, active_streams, disconnect_storm, slow_readers, slow_senders,
                 termination, soak):
        if ONLY and part.__name__ not in ONLY:
            continue
        start = time.monotonic()
        try:
            line = "ok      " + part.__name__ + ": " + asyncio.run(part())
        except Exception as error:  # of any kind: the next part starts afresh
            failed += 1
            line = f"FAILED  {part.__name__}: {type(error).__name__} {error}\n        {part.__doc__}"
        for process in Server.all:  # a part that failed left its own running
            process.kill()
            process.wait()
        Server.all.clear()
        print(f"{line} ({time.monotonic() - start:.0f} s)", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
