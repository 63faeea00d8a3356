#!/usr/bin/env python3
"""Where unicode_table.c comes from; nothing in the build runs it.

    python3 src/text/make_unicode.py > src/text/unicode_table.c      with `unicodedata2` 16.0.0, `unicodedataplus` and `regex`

PCRE2 and utf8proc know the Unicode of the year in which the system packaged them; Hugging Face's `tokenizers` 0.23
splits with that of Unicode 16, normalises with that of Unicode 9 and takes for punctuation what is it in Unicode 8. The
table has the general category of every code point of Unicode 16, the code points that are younger than Unicode 14
(Debian 12's PCRE2) and than Unicode 9, that punctuation, and the letters of the Han script.
"""
import unicodedata

import regex
import unicodedata2
import unicodedataplus

OLD = "14.0.0"  # of Python 3.11's own tables
CATEGORIES = "Cn Cc Cf Co Cs Ll Lm Lo Lt Lu Mc Me Mn Nd Nl No Pc Pd Pe Pf Pi Po Ps Sc Sk Sm So Zl Zp Zs".split()
CODES = range(0x110000)


def runs(values):
    """[(first code point, value)] wherever the value changes."""
    found = []
    for code, value in enumerate(values):
        if not found or found[-1][1] != value:
            found.append((code, value))
    return found


def spans(member):
    """[(first, last)] of the code points for which it is true."""
    changes = runs([member(code) for code in CODES]) + [(0x110000, False)]
    return [(code, changes[i + 1][0] - 1) for i, (code, inside) in enumerate(changes) if inside]


def age(code):
    return float(unicodedataplus.age(chr(code)))


def write(kind, name, entries, per_line):
    print(f"\nconst {kind} {name}[] = {{")
    for i in range(0, len(entries), per_line):
        print("    " + ", ".join(entries[i : i + per_line]) + ",")
    print(f"}};\nconst int {name}_count = {len(entries)};")


def main():
    assert unicodedata2.unidata_version == "16.0.0" and unicodedata.unidata_version == OLD
    category = [unicodedata2.category(chr(code)) for code in CODES]
    print("/* Made by make_unicode.py from Unicode 16.0.0; not to be edited. */")
    print("/* clang-format off */")
    print('#include "text/unicode.h"')
    write("uint32_t", "fb_unicode_changes",
          [f"0x{code << 8 | CATEGORIES.index(value):x}" for code, value in runs(category)], 10)
    write("fb_unicode_span", "fb_unicode_new",
          [f"{{0x{a:x}, 0x{b:x}}}" for a, b in spans(lambda c: category[c] != unicodedata.category(chr(c)))], 6)
    write("fb_unicode_span", "fb_unicode_after_9",
          [f"{{0x{a:x}, 0x{b:x}}}" for a, b in spans(lambda c: category[c] != "Cn" and age(c) > 9)], 6)
    write("fb_unicode_span", "fb_unicode_punctuation",
          [f"{{0x{a:x}, 0x{b:x}}}" for a, b in spans(lambda c: category[c][0] == "P" and age(c) <= 8 or c in (0x166D, 0x111C9))], 6)
    han = regex.compile(r"\p{Han}")
    write("fb_unicode_span", "fb_unicode_han",
          [f"{{0x{a:x}, 0x{b:x}}}" for a, b in spans(lambda c: category[c] != "Cn" and bool(han.match(chr(c))))], 6)


main()
