"""The page at / in headless Chromium, against the real server: as a person with a keyboard uses it.

Run by tests/server/run_page_test: page_test.py FORESAIL MODEL [FOLDER FOR SCREENSHOTS]
"""

import atexit
import base64
import json
import os
import re
import subprocess
import sys
import time
import unittest
import urllib.error
import urllib.request

import foresail_serve

PICTURES = sys.argv[3] if len(sys.argv) > 3 else None
ENTER, ESCAPE, TAB, LEFT, RIGHT = "\ue007", "\ue00c", "\ue004", "\ue012", "\ue014"

# The smallest contrast between a visible text and what is behind it, with the text.
CONTRAST = """
const luminance = c => c.map(v => (v /= 255) <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
  .reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
const parse = text => text.match(/[\\d.]+/g).map(Number);
let least = [99, ""];
for (const element of document.querySelectorAll("body *")) {
  const own = [...element.childNodes].some(n => n.nodeType === 3 && n.data.trim());
  if (!own || !element.checkVisibility() || element.disabled) continue;
  let behind = element, back = [0, 0, 0, 0];
  while (behind && (back = parse(getComputedStyle(behind).backgroundColor))[3] === 0)
    behind = behind.parentElement;
  const [a, b] = [luminance(parse(getComputedStyle(element).color).slice(0, 3)),
                  luminance(back.slice(0, 3))].sort((x, y) => y - x);
  const ratio = (a + .05) / (b + .05);
  if (ratio < least[0]) least = [ratio, element.tagName + " " + element.textContent.slice(0, 40)];
}
return least;
"""


class Server(foresail_serve.Server):
    def __init__(self, *flags):
        super().__init__("--threads", "1", "--speculative-algorithm", "MTP", "--speculative-fixed",
                         *flags)


class Browser:
    """As much of the WebDriver protocol as is needed here."""

    def __init__(self):
        self.driver = subprocess.Popen(["chromedriver", "--port=0"], stdout=subprocess.PIPE,
                                       stderr=subprocess.DEVNULL, text=True)
        atexit.register(self.driver.kill)  # however the tests end
        port = None
        while port is None:
            port = re.search(r"successfully on port (\d+)", self.driver.stdout.readline())
        self.base = f"http://127.0.0.1:{port[1]}/session"
        options = {"args": ["--headless=new", "--no-sandbox", "--disable-dev-shm-usage",
                            "--disable-gpu", "--disable-background-networking",
                            "--hide-scrollbars", "--lang=en"]}
        session = self.call("", {"capabilities": {"alwaysMatch": {
            "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}}})
        self.base += "/" + session["sessionId"]

    def call(self, path, fields=None):
        request = urllib.request.Request(
            self.base + path, None if fields is None else json.dumps(fields).encode())
        try:
            with urllib.request.urlopen(request, timeout=120) as response:
                return json.load(response)["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(json.load(error)["value"]["message"]) from None

    def open(self, url):
        self.call("/url", {"url": url})

    def script(self, text, *arguments):
        return self.call("/execute/sync", {"script": text, "args": arguments})

    def keys(self, text):
        """To whatever has the focus."""
        actions = [{"type": kind, "value": key} for key in text for kind in ("keyDown", "keyUp")]
        self.call("/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]})

    def wait(self, condition, seconds=60):
        end = time.monotonic() + seconds
        while not self.script("return !!(" + condition + ")"):
            if time.monotonic() > end:
                raise AssertionError(f"never: {condition}\n{self.text('body')}")
            time.sleep(0.05)

    def text(self, selector):
        return self.script("return document.querySelector(arguments[0]).innerText", selector)

    def cdp(self, command, **parameters):
        return self.call("/goog/cdp/execute", {"cmd": command, "params": parameters})

    def size(self, width, height):
        self.cdp("Emulation.setDeviceMetricsOverride", width=width, height=height,
                 deviceScaleFactor=1, mobile=False)

    def picture(self, name):
        if PICTURES is None:
            return
        data = self.cdp("Page.captureScreenshot", format="webp", quality=12)["data"]
        with open(os.path.join(PICTURES, name), "wb") as file:
            file.write(base64.b64decode(data))

    def complaints(self):
        """What the console has got since the last time."""
        return [entry["message"] for entry in self.call("/se/log", {"type": "browser"})]

    def stop(self):
        self.call_delete()
        self.driver.terminate()
        self.driver.wait(20)
        self.driver.stdout.close()

    def call_delete(self):
        urllib.request.urlopen(urllib.request.Request(self.base, method="DELETE"), timeout=60)


class Page(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server()
        cls.browser = Browser()

    @classmethod
    def tearDownClass(cls):
        cls.browser.stop()
        assert cls.server.stop() == 0

    def setUp(self):
        self.browser.size(740, 660)
        self.browser.open(self.server.url + "/")
        self.browser.script("sessionStorage.clear()")
        self.browser.wait("/tales/.test(document.getElementById('status').textContent)")

    def tearDown(self):
        self.assertEqual(self.browser.complaints(), [])

    def set(self, field, value):
        self.browser.script("document.getElementById(arguments[0]).value = arguments[1]", field,
                            value)

    def focus(self, field):
        self.browser.script("document.getElementById(arguments[0]).focus()", field)

    def say(self, text):
        self.focus("prompt")
        self.browser.keys(text + ENTER)
        self.browser.wait("!document.getElementById('send').disabled")

    def answer(self, fields):
        request = urllib.request.Request(
            self.server.url + "/v1/chat/completions", json.dumps(fields).encode(),
            {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as response:
            return json.load(response)["choices"][0]["message"]["content"]

    def test_chat_by_keyboard(self):
        self.assertIn("Nothing said yet", self.browser.text("#log"))
        self.set("temperature", "0")
        self.set("max_tokens", "80")
        self.browser.script("document.getElementById('tab-chat').focus()")
        self.browser.keys(TAB)  # the next stop is the message
        self.assertEqual(self.browser.script("return document.activeElement.id"), "prompt")
        self.browser.keys("Tell me of the sea" + ENTER)
        self.browser.wait("document.getElementById('send').disabled === false && "
                          "document.querySelector('#log .d')")
        self.browser.wait("/Answered with/.test(document.getElementById('done').textContent)")
        shown = self.browser.script(
            "return [...document.querySelectorAll('#log article:last-of-type .out "
            "span:not(.r)')].map(e => e.textContent).join('')")
        fields = {"messages": [{"role": "user", "content": "Tell me of the sea"}],
                  "temperature": 0, "max_tokens": 80}
        first = self.answer(fields)
        self.assertEqual(shown, first)
        self.assertRegex(self.browser.text("#log article:last-of-type p.figures"),
                         r"80 tokens · [\d.]+ tok/s · accept length [1-4]\.\d\d · by position")
        self.assertTrue(self.browser.script("return !!document.querySelector('#log .r')"))
        self.browser.picture("page-chat.webp")
        # The next message carries the conversation on.
        self.say("And then?")
        fields["messages"] += [{"role": "assistant", "content": first},
                               {"role": "user", "content": "And then?"}]
        self.assertIn(self.answer(fields)[:40], self.browser.script(
            "return [...document.querySelectorAll('#log article:last-of-type .out "
            "span:not(.r)')].map(e => e.textContent).join('')"))
        self.focus("clear")
        self.browser.keys(" ")
        self.assertIn("Nothing said yet", self.browser.text("#log"))

    def test_text_mode_curl_and_escape(self):
        self.set("mode", "text")
        self.set("max_tokens", "2000")
        self.focus("prompt")
        self.browser.keys("It's the old captain")
        self.focus("curl")
        self.browser.keys(" ")
        command = self.browser.text("#command")
        self.assertIn("/v1/completions", command)
        command = command.replace('"max_tokens":2000', '"max_tokens":4')
        output = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60)
        self.assertIn("data: [DONE]", output.stdout)
        self.focus("prompt")
        self.browser.keys(ENTER)
        self.browser.wait("document.querySelectorAll('#log span').length > 5")
        self.browser.keys(ESCAPE)
        self.browser.wait("/Stopped/.test(document.getElementById('log').textContent)")

    def test_errors_are_told(self):
        self.set("max_tokens", "100000")
        self.say("Too long")
        self.assertIn("maximum context length", self.browser.text("#log .bad"))
        self.assertEqual(self.browser.script("return document.getElementById('prompt').value"),
                         "Too long")
        self.assertTrue(any("400" in line for line in self.browser.complaints()))

    def test_text_of_a_model_never_becomes_markup(self):
        self.browser.script("""
          const evil = "<img src=x onerror='window.hacked = 1'><script>window.hacked = 1</script>";
          addMessage(evil);
          new Answer().take({choices: [{
            delta: {content: evil, tool_calls: [{index: 0, function: {name: evil,
                                                                      arguments: evil}}]},
            draft_info: [{text: evil, rejected: [evil]}, {text: evil, draft: 1},
                         {text: evil, part: "reasoning"}]}]});""")
        time.sleep(0.2)
        self.assertIsNone(self.browser.script("return window.hacked"))
        self.assertEqual(self.browser.script("return document.querySelectorAll('#log img, "
                                             "#log script').length"), 0)
        self.assertIn("onerror", self.browser.text("#log"))
        # Were it markup, it would not run either.
        self.browser.script("document.getElementById('log').innerHTML = "
                            "\"<img src='data:,' onerror='window.hacked = 1'>\"")
        time.sleep(0.2)
        self.assertIsNone(self.browser.script("return window.hacked"))
        self.assertTrue(any("Content Security Policy" in line
                            for line in self.browser.complaints()))

    def test_race(self):
        self.focus("tab-chat")
        self.browser.keys(RIGHT)
        self.set("mode", "text")
        self.browser.size(740, 520)
        self.set("race-tokens", "60")
        self.focus("go")
        self.browser.keys(ENTER)
        self.browser.wait("/times as fast/.test(document.getElementById('verdict').textContent)")
        self.assertIn("the same 60 tokens", self.browser.text("#verdict"))
        self.assertEqual(self.browser.script(
            "return [...document.querySelectorAll('#plain .d, #plain .r')].length"), 0)
        self.assertTrue(self.browser.script("return !!document.querySelector('#fast .d')"))
        self.browser.picture("page-race.webp")
        self.browser.script("document.getElementById('together').checked = true")
        self.browser.keys(ENTER)
        self.browser.wait("/the same/.test(document.getElementById('verdict').textContent)")

    def test_server_view(self):
        self.set("max_tokens", "60")
        self.say("Tell me of the sea")
        self.focus("tab-chat")
        self.browser.keys(LEFT)  # around the corner
        self.browser.wait("document.querySelectorAll('#positions progress').length >= 1")
        self.browser.wait("document.getElementById('line').getAttribute('points')")
        self.assertRegex(self.browser.text("#accept"), r"accept length [1-4]\.\d\d; \d+ %")
        self.assertRegex(self.browser.text("#page-figures"), r"\d+ used.*\d+ cached.*\d+ free")
        self.browser.wait("document.querySelectorAll('#pages .c').length")
        squares = self.browser.script(
            "return [...document.querySelectorAll('#pages i')].map(square => square.title)")
        self.assertEqual([title.split(": ")[0] for title in squares],
                         [f"page {i + 1}" for i in range(len(squares))])
        self.assertIn("cached", {title.split(": ")[1] for title in squares})
        self.assertIn("p50 / p99", self.browser.text("#times"))
        self.assertEqual(self.browser.text("#slow"), "Idle.")

    def test_narrow_and_contrast(self):
        self.browser.size(360, 640)
        self.set("max_tokens", "60")
        self.say("Tell me of the sea")
        for theme in ("light", "dark"):
            self.browser.script("document.documentElement.dataset.theme = arguments[0]", theme)
            for view in ("chat", "race", "server"):
                self.browser.script("document.getElementById('tab-' + arguments[0]).click()", view)
                if view == "server":
                    self.browser.wait("document.querySelectorAll('#positions progress').length")
                self.assertLessEqual(
                    self.browser.script("return document.documentElement.scrollWidth"), 360, view)
                ratio, where = self.browser.script(CONTRAST)
                self.assertGreaterEqual(ratio, 4.5, f"{theme} {view}: {where}")
        self.assertRegex(self.browser.text("#rate"), r"^0\.0 tok/s now, most 0\.0, ")  # so far
        self.browser.size(360, 1110)  # down to the pages of the cache
        self.browser.wait("document.querySelectorAll('#pages .c').length")
        self.browser.picture("page-server.webp")

    def test_no_model_no_server_and_a_key(self):
        server = Server("--api-key", "alpha")
        self.browser.open(server.url + "/")
        self.browser.wait("!document.getElementById('key').hidden")
        self.assertIn("API key", self.browser.text("#status"))
        self.browser.keys("beta" + ENTER)
        self.browser.wait("/Invalid API key/.test(document.getElementById('status').textContent)")
        self.browser.wait("!document.getElementById('key').hidden")
        self.focus("key-text")
        self.browser.keys("alpha" + ENTER)
        self.browser.wait("/tales/.test(document.getElementById('status').textContent)")
        self.set("max_tokens", "5")
        self.say("Hello")
        self.assertIn("5 tokens", self.browser.text("#log"))
        self.assertEqual(server.stop(), 0)
        self.browser.wait("document.getElementById('status').className === 'bad'")
        self.assertIn("cannot be reached", self.browser.text("#status"))
        self.browser.complaints()  # 401 and refused connections are written there


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
