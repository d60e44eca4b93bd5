"""`foresail serve` as a process of a test that is run as TEST FORESAIL MODEL."""

import atexit
import signal
import subprocess
import sys

FORESAIL, MODEL = sys.argv[1:3]


class Server:
    """On a free port, with what the tests have in common; it does not outlive the test.

    Silent unless `log` is a format: then it says all it has to say. `more` goes to Popen."""

    def __init__(self, *flags, model=MODEL, log=None, **more):
        command = [FORESAIL, "serve", model, "--port", "0",
                   *(["--log-format", log] if log else ["--quiet", "--log-format", "off"])]
        self.process = subprocess.Popen([*command, *flags], stdout=subprocess.PIPE, text=True,
                                        **more)
        atexit.register(self.process.kill)
        self.ready = self.process.stdout.readline()
        words = self.ready.split()
        assert words[:1] == ["ready"], self.ready
        self.url = words[1]
        self.address = self.url.removeprefix("http://")

    def term(self):
        self.process.send_signal(signal.SIGTERM)

    def stop(self):
        """Its exit status."""
        self.term()
        self.process.communicate(timeout=60)
        return self.process.returncode
