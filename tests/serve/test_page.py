#!/usr/bin/env python3
"""The page of `fusebox serve`, as a user meets it, in Chromium (Debian: chromium):

    tests/serve/test_page.py [URL] [--only NAME] [--screenshot FILE [--dark] [--size WxH]]

Without a URL it starts $FUSEBOX with the built-in model. browser.py says how the browser is driven. Without Chromium it
says so and fails. A model with a short context may answer faster than a switch can be reached: the checks that flip a
fuse during an answer try several times and say so if they never met a running one."""
import argparse, contextlib, json, sys, time, traceback, urllib.request

from browser import CTRL, Browser
from in_page import CONTRAST, FAKE, FRAMES

HOSTILE = "<img src=x onerror=\"window.hostile=1\"><script>window.hostile=2</script> said the fox"
CHECKS = []


def check(function):
    CHECKS.append(function)
    return function


class Page(Browser):
    """The page at `url`, and what the checks do on it."""

    def __init__(self, url):
        super().__init__()
        self.url = url
        self.props = json.load(urllib.request.urlopen(url + "/props"))
        self.tokens = max(32, min(400, self.props["context"] - 128))

    def fresh(self, width=1280, height=800, tokens=None, **fields):
        """A newly loaded page with these sampling fields."""
        self.size(width, height, phone=width < 700)
        self.media(prefers_color_scheme="light")
        self.open(self.url + "/")
        self.until("$('rows').children.length > 3 && $('facts').textContent", what="the fuses are shown")
        fields = {"max_tokens": tokens or self.tokens, **fields}
        for name, value in fields.items():
            self.js(f"params.{name}.value = {json.dumps(str(value))}, summarise()")
        return self

    def prompt(self, text):
        self.js("mode === 'chat' ? $('say').value = %s : rewrite(%s), buttons()" % ((json.dumps(text),) * 2))

    def send(self, text="Once upon a time there was"):
        self.prompt(text)
        self.click("#go")

    def answer(self, seconds=60):
        self.until("!active && last", seconds, "the answer ends")
        return self.js("last.text")

    def settle(self):
        """A state that every check can start from: no answer runs, every fuse that applies is on."""
        self.js("stop(); fetch('/fuses', {method: 'POST', headers: {'Content-Type': 'application/json'}, body: '{\"fuse\":\"auto\"}'}).then(r => r.text())")
        self.until("!active && box.state && !box.state.pending && box.state.fuse === 'auto'", 20)

    def bit_fuse(self):
        """A fuse that can be flipped during an answer without changing it, and that sampling does not switch off."""
        name = self.js("[...box.fuses.values()].filter(f => f.applies && f.on && f.class === 'bit' && f.calls_per_step > 1).at(-1)?.name")
        assert name, "the model has a bit fuse in its layers"
        return name


def no_sideways(page):
    wide, inner = page.js("[document.documentElement.scrollWidth, innerWidth]")
    assert wide <= inner, f"{wide} px wide in a window of {inner}"


# ---- Loading

@check
def markup_allows_a_strict_policy(page):
    text = urllib.request.urlopen(page.url + "/").read().decode()
    page.fresh()
    bad = page.js("[...document.querySelectorAll('*')].flatMap(e => [...e.attributes].filter(a => a.name.startsWith('on')).map(a => e.id + ' ' + a.name))")
    assert not bad, f"handlers in the markup: {bad}"
    markup = text.split("<script>")[0].split("</style>")[1]
    assert " style=" not in markup, "style attributes"
    assert text.count("<script") == 1 and text.count("<style") == 1 and "src=" not in markup and "@import" not in text


@check
def every_fuse_is_a_switch(page):
    page.fresh()
    fuses = json.load(urllib.request.urlopen(page.url + "/fuses"))["fuses"]
    for fuse in fuses:
        row = page.js("(() => { const s = document.querySelector('[data-fuse=%s]'), r = s.closest('tr'); return "
                      "[s.getAttribute('role'), s.getAttribute('aria-checked'), s.disabled, r.textContent]; })()" % fuse["name"])
        taken = not fuse["on"] and any(f["name"] == fuse["taken_by"] and f["on"] for f in fuses)
        dead = not fuse["applies"] or taken
        assert row[:3] == ["switch", "true" if fuse["on"] else "false", dead], f"{fuse['name']}: {row}"
        if fuse["why_not"]: assert fuse["why_not"] in row[3], f"{fuse['name']} says why not: {row[3]}"
        elif taken: assert fuse["taken_by"] in row[3], f"{fuse['name']} says what took it: {row[3]}"


# ---- Answers

@check
def text_arrives_in_pieces(page):
    page.fresh()
    page.js("window.lengths = new Set(); new MutationObserver(() => lengths.add($('scroll').textContent.length))"
            ".observe($('scroll'), {childList: true, characterData: true, subtree: true}), 0")
    page.send()
    text = page.answer()
    pieces = page.js("lengths.size")
    assert len(text) > 20 and pieces >= 3, f"{len(text)} characters in {pieces} pieces"
    assert page.js("last.box.textContent === last.text"), "the text is on the page once"
    assert "seed" in page.js("$('line').textContent")


@check
def escape_stops(page):
    page.fresh()
    for _ in range(8):
        page.send()
        page.js("new Promise(done => { const wait = () => !active || active.run.text ? done() : setTimeout(wait, 1); wait(); })"
                ".then(() => document.dispatchEvent(new KeyboardEvent('keydown', {key: 'Escape', bubbles: true})))")
        text = page.answer()
        if page.js("last.stopped"): break
        page.js("fresh()")
    else:
        raise AssertionError("no answer ran long enough to be stopped: take a larger model")
    assert "stopped" in page.js("$('line').textContent")
    time.sleep(0.5)
    assert page.js("last.text") == text, "nothing comes after the stop"
    page.until("box.state.running === 0", 10, "the server has stopped too")


@check
def a_flip_during_an_answer(page):
    page.fresh()
    name = page.bit_fuse()
    switch = f"[data-fuse={name}]"
    for _ in range(8):
        page.send()
        page.js("new Promise(done => { const wait = () => !active || active.run.text.length > 20 ? done() : setTimeout(wait, 1); wait(); })"
                f".then(() => document.querySelector('{switch}').click())")
        page.answer()
        page.until("!box.wanted.size")
        if page.js("last.box.querySelector('.mark')?.nextSibling?.textContent.length > 0"): break
        page.settle()
        page.js("fresh()")
    else:
        raise AssertionError("no answer ran long enough to be flipped: take a larger model")
    assert page.js(f"document.querySelector('{switch}').getAttribute('aria-checked')") == "false"
    assert f"{name} off" in page.js("last.box.querySelector('.mark').dataset.tip")
    made, shown = page.js("[last.text, last.box.textContent]")
    assert made == shown, "a mark adds no text"
    page.point(".mark")
    page.until("!$('tip').hidden && $('tip').textContent.includes('off')", what="the mark's tooltip")
    # The proof: the same text with the fuses as they are now.
    page.click("#same")
    page.until("!active && !!$('verdict')", 60, "a verdict")
    said = page.js("$('line').textContent")
    assert f"identical: {page.js('count(last.tokens)')} tokens" in said and f"-{name}" in said, said
    page.settle()


@check
def same_text_says_where_it_differs(page):
    page.fresh(seed=7)
    page.send()
    text = page.answer()
    page.js("last.text = last.text.slice(0, 9) + '#' + last.text.slice(10)")
    page.click("#same")
    page.until("!active && !!$('verdict')", 60)
    said = page.js("$('line').textContent")
    assert "differs from character 10" in said and json.dumps(text[9:23], ensure_ascii=False) in said, said
    assert page.js("document.querySelectorAll('.mark.differs').length") == 1


@check
def numbers_savings_and_the_step_appear(page):
    page.fresh()
    page.settle()
    name = page.bit_fuse()
    before = page.js(f"box.fuses.get('{name}').calls")
    page.send()
    page.answer()
    page.click("#loop")
    page.click("#same")
    page.until("Number($('n-tps').textContent.replace(',', '')) > 1", what="tokens a second")
    page.until("$('ops-now').children.length > 2", 20, "the step is drawn")
    page.until(f"box.fuses.get('{name}').calls > {before}", what="calls are counted")
    ops = page.js("sign(box.now.ops)")
    end = time.monotonic() + 40
    while not page.js(f"box.fuses.get('{name}').measured"):
        assert time.monotonic() < end, f"no measured saving of {name} in 40 s"
        page.click(f"[data-fuse={name}]")
        time.sleep(1.2)
    if page.js(f"box.fuses.get('{name}').on"): page.click(f"[data-fuse={name}]")
    page.until(f"!box.fuses.get('{name}').on && box.now && sign(box.now.ops) !== {json.dumps(ops)}", 20, "the step without it")
    page.until("$('ops-before').children.length > 2 && $('ribbons').children.length > 0", what="the step before")
    page.until(f"box.rows.get('{name}').measured.textContent !== '–'", what="the measured saving is shown")
    assert "→" in page.js("$('change').textContent")
    page.until("$('line').textContent.includes('round 2')", 30, "the second round")
    page.click("#go")  # the button says Stop now
    page.until("!active", 10, "Stop ends the comparison")
    assert page.js("$('line').textContent").startswith("identical: "), page.js("$('line').textContent")
    page.settle()


@check
def a_tol_fuse_waits(page):
    page.fresh()
    page.settle()
    name = page.js("[...box.fuses.values()].find(f => f.applies && f.class === 'tol')?.name")
    assert name, "the model has a tol fuse"
    for _ in range(8):
        page.send()
        page.js("new Promise(done => { const wait = () => !active || active.run.text ? done() : setTimeout(wait, 1); wait(); })"
                f".then(() => document.querySelector('[data-fuse={name}]').click())")
        page.js("window.waited = false; new Promise(done => { const wait = () => { if (box.state.pending) waited = "
                "$('pending').textContent; waited || !box.wanted.size ? done() : setTimeout(wait, 5); }; wait(); })")
        page.answer()
        page.until(f"!box.state.pending && !box.fuses.get('{name}').on", 10, "it is off when the answer has ended")
        if page.js("waited"): break
        page.settle()
    else:
        raise AssertionError("no answer ran long enough to be waited for: take a larger model")
    assert "waits" in page.js("waited")
    assert not page.js("!!last.box.querySelector('.mark')"), "it disturbed the answer"
    page.settle()


@check
def hostile_text_is_inert(page):
    page.fresh(tokens=32)
    page.send(HOSTILE)
    page.answer()
    time.sleep(0.3)
    assert page.js("window.hostile") is None and page.js("document.querySelectorAll('main img, main script').length") == 0
    assert HOSTILE in page.js("$('scroll').textContent"), "it is shown as it is"
    page.js("params.probs.checked = true; summarise()")
    page.send(HOSTILE)
    page.answer()
    assert page.js("window.hostile") is None and page.js("document.querySelectorAll('main img, main script').length") == 0


@check
def tokens_show_their_probabilities(page):
    page.fresh(tokens=24)
    page.js("$('sampling').open = true")
    page.click("input[name=probs]")
    page.send()
    page.answer()
    assert page.js("last.box.querySelectorAll('.tok').length") > 8
    assert page.js("last.box.textContent === last.text")
    page.js("$('sampling').open = false")
    page.point(".tok:nth-of-type(3)")
    page.until("!$('tip').hidden && document.querySelectorAll('#tip tr').length >= 5", what="five alternatives")
    assert page.js("document.querySelectorAll('#tip tr.this').length") == 1, "the chosen one is marked"
    page.point("#facts")
    page.until("$('tip').hidden")
    if page.js("mode") == "chat": page.js("document.querySelector('.said[tabindex]').focus()")
    else: page.click("#page .tok")
    page.key("ArrowRight")
    page.until("!$('tip').hidden", what="the keyboard shows them too")


@check
def an_error_is_shown(page):
    page.fresh(temperature=1e9)
    page.send()
    page.until("!active && !$('note').hidden", 10, "the error")
    assert "temperature" in page.js("$('note').textContent")
    page.expected = ["400"]
    page.js("params.temperature.value = '', fresh()")
    page.send()
    page.answer()
    assert page.js("$('note').hidden"), "the next answer clears it"


@check
def a_conversation_goes_on(page):
    page.fresh(tokens=16)
    if page.js("mode") != "chat":
        page.send("Once")
        first = page.answer()
        page.click("#go")
        page.until(f"!active && last.prompt.endsWith({json.dumps(first)})", what="the next part continues the whole text")
        whole = page.js("written()")
        page.click("#again")
        page.until("!active")
        assert page.js("last.prompt") == whole[:len(page.js("last.prompt"))], "again keeps the prompt"
        return
    page.js("$('systemtext').value = 'You are brief.'")
    for text in ("Hello", "And now?"):
        page.js("$('say').focus()")
        page.write(text)
        page.key("Enter")
        page.until("active || last?.text")
        page.answer()
    roles = page.js("last.body.messages.map(m => m.role)")
    assert roles == ["system", "user", "assistant", "user"], roles
    page.click("#again")
    page.until("!active")
    assert page.js("talk.length") == 4 and page.js("last.body.messages.length") == 4
    page.click("#fresh")
    assert page.js("$('log').children.length") == 0


@check
def a_text_can_be_edited(page):
    page.fresh(tokens=16)
    if page.js("mode") != "text":
        page.click("[data-mode=text]")
    page.send("Once")
    made = page.answer()
    page.js("$('page').focus(), getSelection().selectAllChildren($('page')), getSelection().collapseToEnd()")
    page.write(" and")
    assert page.js("$('page').textContent") == "Once" + made + " and"
    assert page.js("last") is None and page.js("$('same').disabled"), "an edited text is not compared"
    assert page.js("$('page').querySelector('.made').textContent") == made, "typed in the user's ink"
    for _ in range(2): page.key("Enter")
    assert page.js("written()") == "Once" + made + " and\n\n", page.js("written()")
    page.write("<b>then")
    assert page.js("written()") == "Once" + made + " and\n\n<b>then"
    page.key("Enter", CTRL)
    page.until("last")
    page.answer()
    assert page.js("last.body.prompt") == "Once" + made + " and\n\n<b>then"


# ---- The parser and long texts, with a server in the page


@check
def events_may_be_cut_anywhere(page):
    page.fresh()
    text = ': a comment\\r\\ndata: {"choices":[{"text":"déjà "}]}\\r\\n\\r\\ndata:{"choices":[{"text":"日本"}]}\\n\\ndata: [DONE]\\n\\n'
    for size in (1, 2, 3, 7, 1000):
        page.js(FAKE + f"((() => {{ const all = new TextEncoder().encode('{text}'), out = []; for (let i = 0; i < all.length; i += {size}) "
                f"out.push(all.slice(i, i + {size})); return out; }})())")
        got = page.js("(async () => { let s = ''; await events('/v1/completions', {}, null, e => { s += e.choices[0].text; }); return s; })()")
        assert got == "déjà 日本", f"pieces of {size}: {got}"
    for text, says in (('data: {"error":{"message":"no block is free"}}\\n\\n', "no block is free"),
                       ('data: {"choices":[]}\\n\\n', "broke off")):
        page.js(FAKE + f"([new TextEncoder().encode('{text}')])")
        got = page.js("events('/v1/completions', {}, null, () => {}).then(() => 'no error', e => e.message)")
        assert says in got, got
    page.js(FAKE + "([new TextEncoder().encode('data: {\"choices\":[{\"text\":\"so far\",\"delta\":{\"content\":\"so far\"}}]}\\n\\n"
            "data: {\"error\":{\"message\":\"no block is free\"}}\\n\\n')])")
    page.send()
    page.until("!active && !$('note').hidden")
    assert page.js("$('note').textContent") == "no block is free" and page.js("last.box.textContent") == "so far"


@check
def long_texts_stay_fast(page):
    page.fresh()
    page.js(FAKE + "((() => { const out = []; for (let i = 0; i < 10000; i++) out.push(new TextEncoder().encode('data: ' + JSON.stringify({choices: [{"
            "text: ' word' + i % 97 + (i % 40 ? '' : '\\n'), delta: {content: ' word' + i % 97 + (i % 40 ? '' : '\\n')}}]}) + '\\n\\n')); "
            "out.push(new TextEncoder().encode('data: [DONE]\\n\\n')); return out; })())")
    start = time.monotonic()
    page.send()
    page.answer()
    whole = time.monotonic() - start
    assert page.js("last.box.textContent === last.text"), "the text is whole"
    assert page.js("last.tokens") == 10000
    frame = page.js(FRAMES)
    print(f"    10,000 tokens in {whole:.2f} s; after as many with probabilities a frame takes {frame:.1f} ms")
    assert whole < 15 and frame < 20
    bottom = page.js("(s => s.scrollHeight - s.scrollTop - s.clientHeight)($('scroll'))")
    assert bottom < 40, f"{bottom} px from the end of the text"
    page.js("$('scroll').scrollTop = 100")
    page.js("new Promise(done => setTimeout(done, 100))")
    page.js("const w = writer(last.box); w.take({text: '\\n\\n\\nmore', tokens: []}); w.flush()")
    assert page.js("$('scroll').scrollTop") == 100, "a reader who has scrolled up is left there"


# ---- Refusals

def with_answers(page, script):
    """Loads the page with a fetch that `script` (path, how, real) decides about."""
    added = page.call("Page.addScriptToEvaluateOnNewDocument",
                      source="(() => { const real = fetch; window.fetch = (path, how) => (" + script + ")(String(path), how, real); })()")
    page.open(page.url + "/")
    return added["identifier"]


@check
def without_rights_switches_are_read_only(page):
    added = with_answers(page, "async (path, how, real) => path.startsWith('/props') ? new Response(JSON.stringify({...await (await real(path, how)).json(), admin: false})) : real(path, how)")
    page.until("$('rows').children.length > 3")
    page.call("Page.removeScriptToEvaluateOnNewDocument", identifier=added)
    assert page.js("[...document.querySelectorAll('.switch')].every(s => s.disabled)")
    assert "read-only" in page.js("$('readonly').innerText")


@check
def a_key_is_asked_for_once(page):
    added = with_answers(page, "(path, how, real) => (how?.headers || {}).Authorization === 'Bearer sesame' || !path.startsWith('/') ? real(path, how) : "
                         "Promise.resolve(new Response('{\"error\":{\"message\":\"a key is needed\"}}', {status: 401}))")
    page.until("!$('keybar').hidden", what="the field for the key")
    page.until("document.activeElement === $('key')")
    page.write("sesame")
    page.key("Enter")
    page.until("$('rows').children.length > 3 && $('keybar').hidden")
    page.open(page.url + "/")
    page.until("$('rows').children.length > 3", what="the key is kept")
    assert page.js("$('keybar').hidden")
    page.js("sessionStorage.clear()")
    page.call("Page.removeScriptToEvaluateOnNewDocument", identifier=added)


# ---- Keyboard, sizes, themes

@check
def the_keyboard_is_enough(page):
    page.fresh(tokens=24)
    page.settle()
    name = page.bit_fuse()
    seen = []
    for _ in range(60):
        page.key("Tab")
        who, outline = page.js("(e => [e.id || e.dataset.fuse || e.dataset.all || e.textContent.trim(), e.id === 'page' ? getComputedStyle($('scroll')).boxShadow : "
                               "getComputedStyle(e).outlineStyle])(document.activeElement)")
        assert outline != "none", f"the focus is not to be seen on {who}"
        seen.append(who)
        if who in ("page", "say"):
            if who == "say": page.write("Hello")
            page.key("Enter", CTRL)
            page.until("last && last.text", what="Ctrl+Enter sends")
            page.answer()
        if who == name: break
    assert name in seen and {"go", "theme"} <= set(seen), seen
    page.key(" ")
    page.until(f"!box.fuses.get('{name}').on", what="Space flips")
    page.key(" ")
    page.until(f"box.fuses.get('{name}').on", what="and flips back")
    page.until("$('ops-now').children.length > 2", 20)
    page.js("$('ops-now').firstChild.focus()")
    page.key("ArrowRight")
    page.until("document.activeElement === $('ops-now').children[1] && !$('tip').hidden")


@check
def a_phone_needs_no_sideways_scrolling(page):
    page.fresh(360, 740, tokens=48)
    no_sideways(page)
    page.send()
    page.answer()
    no_sideways(page)
    page.js("$('sampling').open = true")
    no_sideways(page)
    page.js("$('sampling').open = false")
    page.click("#tab-fuses")
    page.until("$('box').clientHeight > 300")
    no_sideways(page)
    assert page.js("$('box').scrollWidth <= $('box').clientWidth"), "the fuse box neither"
    assert page.js("$('scroll').clientHeight") > 40, "the text's end stays in view"
    small = page.js("[...document.querySelectorAll('#box button:not(:disabled)')].filter(b => b.offsetParent && (b.offsetHeight < 24 || b.offsetWidth < 24)).map(b => b.textContent || b.dataset.fuse)")
    assert not small, f"too small for a finger: {small}"


@check
def both_themes_are_readable(page):
    page.fresh(tokens=40)
    page.js("params.probs.checked = true, summarise()")
    page.send()
    page.answer()
    page.js("$('sampling').open = true")
    dark = "(c => Number(c.match(/\\d+/)[0]) < 60)(getComputedStyle(document.body).backgroundColor)"
    assert not page.js(dark)
    assert page.js(CONTRAST) == [], f"contrast below 4.5, light: {page.js(CONTRAST)}"
    page.media(prefers_color_scheme="dark")
    page.until(dark, what="dark where the system is")
    assert page.js(CONTRAST) == [], f"contrast below 4.5, dark: {page.js(CONTRAST)}"
    page.click("#theme")
    page.until(f"!{dark}", what="the button")
    page.open(page.url + "/")
    page.until("$('rows').children.length > 3")
    assert not page.js(dark), "the choice is kept"
    page.js("localStorage.clear()")


@check
def nothing_moves_while_a_text_is_written(page):
    page.fresh()
    page.settle()
    # Bars are drawn to the numbers, and may move; the cursor behind the text is no node.
    page.js("window.shift = []; new PerformanceObserver(list => { for (const e of list.getEntries()) { const moved = e.sources.map(s => s.node)"
            ".filter(n => n && !(n.parentElement || n).closest('.ops') && n.className !== 'len' && n.className !== 'len real'); "
            "if (moved.length) shift.push([e.value, moved.map(n => n.id || n.className || n.nodeName)]); } }).observe({type: 'layout-shift'}), 0")
    page.send()
    page.answer()
    page.js("new Promise(done => setTimeout(done, 300))")
    shift = page.js("shift")
    assert sum(s[0] for s in shift) < 0.0005, f"moved: {shift[:5]}"


# ---- Running

def picture(page, args):
    width, height = map(int, args.size.split("x"))
    page.fresh(width, height, seed=11)
    page.media(prefers_color_scheme="dark" if args.dark else "light")
    page.settle()
    name = page.bit_fuse()
    page.send("Once upon a time there was a poor woodcutter who" if page.js("mode") == "text" else "Tell me about kernels that do two things at once.")
    page.js("new Promise(done => { const wait = () => !active || active.run.text.length > 400 ? done() : setTimeout(wait, 1); wait(); })"
            f".then(() => document.querySelector('[data-fuse={name}]').click())")
    page.answer()
    page.click("#loop")
    page.click("#same")
    page.until("box.now", 20)
    page.click(f"[data-fuse={name}]")  # a small model is done before its first step was timed: once more
    page.until("box.before && box.now && $('ops-before').children.length", 20)
    time.sleep(6)
    page.js("stop()")
    page.until("!active")
    page.js("$('loop').click(), $('scroll').scrollTop = 0, document.activeElement.blur()")
    if width <= 900 and args.tab: page.click("#tab-" + args.tab)
    time.sleep(0.4)
    page.picture(args.screenshot)
    page.settle()


def run(page, function):
    """Whether a check holds. Each has a console without errors and requests to the server only."""
    page.console.clear()
    page.requests.clear()
    page.expected = []
    try:
        function(page)
        page.js("0")
        noise = [line for line in page.console if not any(word in line for word in page.expected)]
        assert not noise, f"console: {noise}"
        away = {url for url in page.requests if not url.startswith((page.url + "/", "data:", "about:"))}
        assert not away, f"requests to elsewhere: {away}"
    except (AssertionError, RuntimeError, TimeoutError) as error:
        if not isinstance(error, AssertionError): traceback.print_exc(file=sys.stdout)
        print(f"not ok - {function.__name__}: {error}", flush=True)
        return False
    print(f"ok - {function.__name__}", flush=True)
    return True


@contextlib.contextmanager
def serving(url):
    """The server at `url`, or one of our own, which must end well."""
    if url:
        yield url
        return
    from server import Server
    with Server("--sequences", 8) as s:
        yield f"http://127.0.0.1:{s.port}"
        if not s.stop("the page's server"): raise SystemExit(1)


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("url", nargs="?")
    args.add_argument("--only", help="run the checks whose names contain this")
    args.add_argument("--screenshot", metavar="FILE", help="take a picture and check nothing")
    args.add_argument("--size", default="1280x800")
    args.add_argument("--dark", action="store_true")
    args.add_argument("--tab", choices=["text", "fuses"], help="which tab of a narrow window the picture shows")
    args = args.parse_args()
    with serving(args.url) as url:
        try:
            page = Page(url.rstrip("/"))
        except OSError as error:
            sys.exit(f"test_page: not run: {error}")
        with page:
            if args.screenshot: return picture(page, args)
            checks = [c for c in CHECKS if not args.only or args.only in c.__name__]
            failed = [c for c in checks if not run(page, c)]
    return bool(failed) or not checks


if __name__ == "__main__":
    sys.exit(main())
