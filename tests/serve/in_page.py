"""JavaScript that test_page.py runs in the page."""

# A fetch whose answers to prompts are these pieces of bytes.
FAKE = """(bytes => { window.real = window.real || fetch; window.fetch = (path, how) => String(path).includes('/v1/comp')
  || String(path).includes('/v1/chat') ? Promise.resolve(new Response(new ReadableStream({start(c) { for (const b of bytes) c.enqueue(b);
  c.close(); }}))) : real(path, how); })"""

# The median time of a frame in which one token comes after 10,000 others, all with probabilities.
FRAMES = """(async () => {
  $('page').contentEditable = 'false';
  last.box.replaceChildren();
  const write = writer(last.box, false), times = [];
  for (let i = 0; i < 10040; i++) {
    const text = ' word' + i % 97 + (i % 40 ? '' : '\\n');
    write.take({text, tokens: [{token: text, logprob: -1, top: []}]});
    if (i < 10000) continue;
    const start = performance.now();
    write.flush();
    $('scroll').scrollHeight;
    times.push(performance.now() - start);
    await new Promise(requestAnimationFrame);
  }
  return times.sort((a, b) => a - b)[20];
})()"""

# Every element whose text has a contrast below 4.5 to what is behind it (WCAG AA).
CONTRAST = """(() => {
  const rgb = s => { const c = document.createElement('canvas').getContext('2d'); c.fillStyle = s; c.fillRect(0, 0, 1, 1); return [...c.getImageData(0, 0, 1, 1).data]; };
  const light = ([r, g, b]) => [r, g, b].map(v => v / 255).map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((s, v, i) => s + v * [0.2126, 0.7152, 0.0722][i], 0);
  const bad = new Set();
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const e = walk.currentNode.parentElement;
    if (!walk.currentNode.data.trim() || !e.getClientRects().length || e.closest('noscript, .unseen, :disabled')) continue;
    let behind = e, ground;
    while (behind && (ground = rgb(getComputedStyle(behind).backgroundColor))[3] < 255) behind = behind.parentElement;
    const a = light(rgb(getComputedStyle(e).color)), b = light(ground);
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) bad.add(`${e.tagName}#${e.id}.${e.className} ${ratio.toFixed(2)}`);
  }
  return [...bad];
})()"""
