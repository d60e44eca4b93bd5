"""How `foresail serve` begins and ends, and with which status: 0 drained, 2 flags, 3 model, 4 device, 5 watchdog.

exit_status_test.py FORESAIL MODEL
"""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

from foresail_serve import FORESAIL, MODEL, Server


class Serve(Server):
    def __init__(self, *flags, **more):
        super().__init__(*flags, stderr=subprocess.PIPE, **more)
        self.open = []

    def post(self, fields):
        connection = http.client.HTTPConnection(self.address, timeout=120)
        connection.request("POST", "/v1/completions", json.dumps(fields),
                           {"Content-Type": "application/json"})
        self.open.append(connection)
        self.open.append(connection.getresponse())
        return self.open[-1]

    def end(self, seconds=60):
        """Exit status and what it said."""
        errors = self.process.communicate(timeout=seconds)[1]
        for thing in self.open:
            thing.close()
        return self.process.returncode, errors


class ExitStatus(unittest.TestCase):
    def refused(self, *flags, model=MODEL):
        if "--port" not in flags:
            flags += ("--port", "0")
        result = subprocess.run([FORESAIL, "serve", model, "--quiet", *flags],
                                capture_output=True, text=True, timeout=60)
        self.assertEqual(result.stdout, "")
        self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
        self.assertTrue(result.stderr.startswith("error: "), result.stderr)
        return result.returncode, result.stderr

    def test_0_drained(self):
        for stop in (signal.SIGTERM, signal.SIGINT):
            server = Serve("--context-length", "1024")
            answer = server.post({"prompt": "Once", "max_tokens": 200, "ignore_eos": True,
                                  "temperature": 0, "stream": True})
            first = answer.readline()
            self.assertTrue(first.startswith(b"data: "), first)
            server.process.send_signal(stop)
            self.assertTrue(answer.read().endswith(b"data: [DONE]\n\n"))
            self.assertEqual(server.end(), (0, ""))

    def test_0_but_it_says_how_many_were_cut_off(self):
        endless = {"prompt": "Once", "max_tokens": 2000, "ignore_eos": True, "stream": True}
        for timeout, count in (("0", 2), ("300", 2), ("300", 1)):
            server = Serve("--device", "ref", "--context-length", "2048",
                           "--shutdown-timeout", timeout)
            answers = [server.post(endless) for _ in range(count)]
            for answer in answers:
                self.assertTrue(answer.readline().startswith(b"data: "))
            server.term()
            if timeout == "300":  # the second one ends what the limit would not
                time.sleep(0.5)
                server.term()
            for answer in answers:
                self.assertIn(b"shutting_down", answer.read())
            what = "1 request was" if count == 1 else "2 requests were"
            why = "--shutdown-timeout 0" if timeout == "0" else "the second signal"
            self.assertEqual(server.end(), (0, f"stopped: {what} cut off by {why}\n"))

    # Nobody reads what it says: it serves, and drains, as ever.
    def test_0_drained_without_anyone_at_stderr(self):
        for way in ("2>/dev/full", "2>&-", "0<&- 2>&-", "| cat"):
            reader, writer = os.pipe()
            stderr = subprocess.DEVNULL
            if way == "| cat":  # a reader that has gone
                way, stderr = "", writer
            process = subprocess.Popen(
                ["sh", "-c", f'exec "$@" {way}', "sh", FORESAIL, "serve", MODEL, "--port", "0",
                 "--threads", "1", "--context-length", "1024"],
                stdout=subprocess.PIPE, stderr=stderr, text=True)
            os.close(writer)
            os.close(reader)
            with self.subTest(way), process:
                ready = process.stdout.readline()
                self.assertTrue(ready.startswith("ready http://"), ready)
                if "&-" in way:
                    self.assertEqual(os.readlink(f"/proc/{process.pid}/fd/2"), "/dev/null")
                connection = http.client.HTTPConnection(ready.split()[1].removeprefix("http://"),
                                                        timeout=120)
                connection.request("POST", "/v1/completions", json.dumps(
                    {"prompt": "Once", "max_tokens": 200, "ignore_eos": True, "stream": True}),
                    {"Content-Type": "application/json"})
                answer = connection.getresponse()
                self.assertTrue(answer.readline().startswith(b"data: "))
                process.terminate()
                self.assertTrue(answer.read().endswith(b"data: [DONE]\n\n"))
                connection.close()
                self.assertEqual(process.wait(timeout=60), 0)

    def test_0_of_a_command_without_anyone_at_stderr(self):
        reader, writer = os.pipe()
        os.close(reader)
        result = subprocess.run([FORESAIL, "run", MODEL, "--prompt", "Once", "-n", "4"],
                                stdout=subprocess.PIPE, stderr=writer)
        os.close(writer)
        self.assertEqual(result.returncode, 0)
        self.assertTrue(result.stdout)

    def test_0_where_the_ready_line_cannot_be_written(self):
        for way in (">/dev/full", ">&-"):
            with self.subTest(way), tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, "socket")
                process = subprocess.Popen(
                    ["sh", "-c", f'exec "$@" {way}', "sh", FORESAIL, "serve", MODEL, "--uds", path,
                     "--threads", "1", "--quiet", "--log-format", "off"],
                    stderr=subprocess.PIPE, text=True)
                answer = b""
                while b"200 OK" not in answer:
                    time.sleep(0.05)
                    self.assertIsNone(process.poll())
                    with socket.socket(socket.AF_UNIX) as client:
                        if client.connect_ex(path) == 0:
                            client.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
                            answer = client.recv(1000)
                process.terminate()
                self.assertEqual(process.communicate(timeout=60)[1], "")
                self.assertEqual(process.returncode, 0)

    def test_quiet_is_what_its_help_says(self):
        text = subprocess.run([FORESAIL, "serve", "--help"], capture_output=True, text=True,
                              check=True).stdout
        self.assertRegex(text, "--quiet +only the ready line at start-up\n")
        server = Serve("--quiet", log="text")
        self.assertTrue(server.ready.startswith("ready "))
        server.term()
        self.assertEqual(server.end(), (0, ""))

    def test_every_line_is_an_object_where_the_log_is_json(self):
        server = Serve("--device", "ref", "--context-length", "2048", "--shutdown-timeout", "0",
                       log="json")
        answer = server.post({"prompt": "Once", "max_tokens": 2000, "ignore_eos": True,
                              "stream": True})
        self.assertTrue(answer.readline().startswith(b"data: "))
        server.term()
        self.assertIn(b"shutting_down", answer.read())
        status, errors = server.end()
        lines = [json.loads(line) for line in errors.splitlines()]
        self.assertEqual((status, [line["event"] for line in lines]),
                         (0, ["limits", "listening", "stopping", "request", "stopped"]))
        self.assertEqual(lines[0]["body_bytes"], 32 << 20)
        self.assertEqual((lines[1]["url"], lines[1]["model_path"]), (server.url, MODEL))
        self.assertEqual(lines[2]["timeout_s"], 0)
        self.assertEqual((lines[4]["cut_requests"], lines[4]["cut_by"]),
                         (1, "--shutdown-timeout 0"))
        self.assertTrue(all("time" in line for line in lines))
        # A fault ends it, before it listens and after.
        for flags, status in ((("/nonexistent",), 3),
                              ((MODEL, "--max-total-tokens", "100000000000000"), 4)):
            result = subprocess.run([FORESAIL, "serve", *flags, "--port", "0", "--log-format",
                                     "json"], capture_output=True, text=True, timeout=60)
            lines = [json.loads(line) for line in result.stderr.splitlines()]
            self.assertEqual((result.returncode, lines[-1]["event"]), (status, "error"))
            self.assertNotIn("error:", lines[-1]["message"])

    def test_0_stopped_while_it_loads(self):
        process = subprocess.Popen([FORESAIL, "serve", MODEL, "--port", "0", "--log-format", "off"],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for line in process.stderr:
            if line.startswith("listening"):
                break
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0)

    def test_2_flags(self):
        self.assertEqual(self.refused("--log-format", "xml")[0], 2)
        self.assertEqual(self.refused("--no-such-flag")[0], 2)
        # More than the engine finds.
        self.assertEqual(self.refused("--max-logprobs", "129")[0], 2)
        self.assertEqual(self.refused("--served-model-name", "a\nb")[0], 2)
        self.assertIn("without scheme", self.refused("--allowed-host", "https://x.org")[1])
        status, line = self.refused("--ssl-certfile", "cert.pem")
        self.assertEqual(status, 2)
        self.assertIn("let a proxy terminate TLS", line)
        server = Serve()
        port = int(server.url.rsplit(":", 1)[1])
        for tries_left in (2, 1, 0):  # another program may take the port that was free
            result = subprocess.run([FORESAIL, "serve", MODEL, "--port", str(port), "--quiet"],
                                    capture_output=True, text=True, timeout=60)
            self.assertEqual(result.returncode, 2)
            free = int(re.search(r"--port (\d+) is free", result.stderr)[1])
            self.assertLess(port, free)
            try:
                socket.create_server(("127.0.0.1", free)).close()
                break
            except OSError:
                self.assertGreater(tries_left, 0)
        with socket.create_server(("127.0.0.1", 65535)):
            result = subprocess.run([FORESAIL, "serve", MODEL, "--port", "65535", "--quiet"],
                                    capture_output=True, text=True, timeout=60)
            self.assertEqual(result.returncode, 2)
            self.assertNotIn("--port", result.stderr)  # there is none after the last
        self.assertIn("this machine has no such address", self.refused("--host", "203.0.113.7")[1])
        self.assertIn("Host not found", self.refused("--host", "no.such.host.invalid")[1])
        server.term()
        self.assertEqual(server.end(), (0, ""))

    def test_3_model(self):
        self.assertEqual(self.refused(model="/nonexistent")[0], 3)
        # Before the port is opened: that this one is taken does not show.
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = str(taken.getsockname()[1])
            draft = ("--speculative-draft-model-path", "/nonexistent", "--speculative-algorithm")
            self.assertEqual(self.refused("--port", port, model="/nonexistent")[0], 3)
            self.assertEqual(self.refused("--port", port, *draft, "EAGLE3")[0], 3)
            self.assertEqual(self.refused("--port", port, *draft, "STANDALONE")[0], 3)
            self.assertEqual(self.refused("--port", port)[0], 2)
        with tempfile.TemporaryDirectory() as folder:
            for name in os.listdir(MODEL):
                if name.endswith(".json"):
                    os.symlink(os.path.join(os.path.abspath(MODEL), name),
                               os.path.join(folder, name))
            self.assertEqual(self.refused(model=folder)[0], 3)

    def test_3_a_file_that_cannot_be_read_is_not_one_that_is_missing(self):
        with tempfile.TemporaryDirectory() as folder:
            for name in os.listdir(MODEL):
                os.symlink(os.path.join(os.path.abspath(MODEL), name), os.path.join(folder, name))
            for name in ("config.json", "generation_config.json", "hf_quant_config.json",
                         "tokenizer.json", "tokenizer_config.json", "chat_template.jinja",
                         "additional_chat_templates", "model.safetensors",
                         "model.safetensors.index.json"):
                path = os.path.join(folder, name)
                kept = os.readlink(path) if os.path.islink(path) else None
                for target in (name, "gone"):  # itself, nothing
                    if os.path.islink(path):
                        os.unlink(path)
                    os.symlink(target, path)
                    status, line = self.refused(model=folder)
                    self.assertEqual(status, 3, line)
                    self.assertIn(name, line)
                os.unlink(path)
                if kept:
                    os.symlink(kept, path)
        with tempfile.TemporaryDirectory() as folder:
            looped = os.path.join(folder, "loop")
            os.symlink("loop", looped)
            for model in (looped, os.path.join(looped, "model")):
                self.assertEqual(self.refused(model=model)[0], 3)

    def test_4_device(self):
        self.assertEqual(self.refused("--max-total-tokens", "100000000000000")[0], 4)
        if not os.path.exists("/dev/nvidiactl"):
            self.assertEqual(self.refused("--device", "cuda")[0], 4)

    def test_5_watchdog(self):
        # The float64 oracle needs far longer than a second for a step of so many tokens.
        server = Serve("--device", "ref", "--watchdog-timeout", "1")
        lost = []

        def ask():
            try:
                server.post({"prompt": "the old captain " * 300, "max_tokens": 1,
                             "request_id": "long\x1b[2J-one"})
            except (http.client.HTTPException, OSError) as error:
                lost.append(error)

        start = time.monotonic()
        thread = threading.Thread(target=ask)
        thread.start()
        status, errors = server.end()
        thread.join()
        self.assertEqual(status, 5, errors)
        self.assertEqual(errors.count("\n"), 1, errors)
        self.assertIn(r'(--watchdog-timeout 1): 1 requests under way: "long\u001b[2J-one"', errors)
        self.assertLess(time.monotonic() - start, 10)
        self.assertEqual(len(lost), 1)

    def test_a_model_without_a_tokenizer_is_said_to_be_one(self):
        with tempfile.TemporaryDirectory() as folder:
            for name in os.listdir(MODEL):
                if not name.startswith("tokenizer"):
                    os.symlink(os.path.join(os.path.abspath(MODEL), name),
                               os.path.join(folder, name))
            server = Serve(model=folder)
            self.assertIn("; token ids only, the model folder has no tokenizer", server.ready)
            answer = server.post({"prompt": "Once", "max_tokens": 2})
            self.assertEqual(answer.status, 400)
            self.assertIn(b"must be token ids: the model has no tokenizer", answer.read())
            self.assertEqual(server.post({"prompt": [0, 5], "max_tokens": 2}).status, 200)
            server.term()
            self.assertEqual(server.end(), (0, ""))
        server = Serve()
        self.assertNotIn("tokenizer", server.ready)
        server.term()
        self.assertEqual(server.end(), (0, ""))

    def test_5_not_when_it_was_paused(self):
        server = Serve("--watchdog-timeout", "1")
        answer = server.post({"prompt": "Once", "max_tokens": 1500, "ignore_eos": True,
                              "stream": True})
        for _ in range(3):
            self.assertTrue(answer.readline())
            server.process.send_signal(signal.SIGSTOP)
            time.sleep(1.5)
            server.process.send_signal(signal.SIGCONT)
            time.sleep(0.05)
        self.assertTrue(answer.read().endswith(b"data: [DONE]\n\n"))
        server.term()
        self.assertEqual(server.end(), (0, ""))

    def test_what_systemd_is_told(self):
        with tempfile.TemporaryDirectory() as folder, \
                socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            path = os.path.join(folder, "notify")
            manager.bind(path)
            manager.settimeout(30)
            server = Serve("--watchdog-timeout", "2", env=os.environ | {"NOTIFY_SOCKET": path})
            self.assertEqual(manager.recv(100), b"READY=1")
            self.assertEqual(manager.recv(100), b"WATCHDOG=1")
            server.term()
            while (state := manager.recv(100)) == b"WATCHDOG=1":
                pass
            self.assertEqual(state, b"STOPPING=1")
            self.assertEqual(server.end(), (0, ""))

    def test_5_not_while_it_works(self):
        """Many steps in a row, and a long rest, are no stall."""
        server = Serve("--watchdog-timeout", "1", "--context-length", "2048", "--threads", "1")
        start = time.monotonic()
        while time.monotonic() - start < 3:
            self.assertEqual(server.post({"prompt": "Once", "max_tokens": 500,
                                          "ignore_eos": True}).status, 200)
        time.sleep(1.5)
        self.assertEqual(server.post({"prompt": "Once", "max_tokens": 2}).status, 200)
        server.term()
        self.assertEqual(server.end(), (0, ""))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
