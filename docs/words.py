"""Counts the words of the documentation and reports long sentences and words outside the vocabulary.

    python docs/words.py [PAGE ...]

Without pages, it reads all hand-written ones, in `docs/` and the README. Code blocks, tables and generated parts are not counted
as sentences; words of tables count as words. Exit code 1 if a limit is exceeded.
"""

import glob
import os
import re
import sys

DOCS = os.path.dirname(os.path.abspath(__file__))
MAX_SENTENCE = 30  # words
MAX_LONG_SENTENCES = 0.05  # fraction of all sentences
MAX_WORDS = {"guide": 900, "README.md": 900, "": 20_000}  # of each page of the guide, of the README, of docs/ as a whole
REPLACED = {  # by the vocabulary, with the words in their place
    "verdict": "summary",
    "proof": "final evaluation",
    "the start": "initial model",
    "allowed clean loss": "maximum clean loss",
    "not separated": "not significant",
    "outside the interval": "significant",
    "measures": "metrics",
    "picture of": "image of",
    "pictures": "images",
    "share of": "fraction of",
    "colour": "color",
    "grey": "gray",
    "refused": "not accepted",
    "those of": "the noun",
    "of which": "a second sentence",
    "is no": "is not a",
    "are no": "are not",
    "beside it": "next to it",
}


def prose(text):
    """Returns the paragraphs and list items of a page, without code blocks, tables, headings and links' addresses."""
    text = re.sub(r"^---\n.*?^---\n", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"^ *```.*?^ *```", "\n", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"<!--.*?-->|<[^>]+>", "", text, flags=re.DOTALL)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    lines = ["" if re.match(r"\s*(\||#)", line) else re.sub(r"^\s*([-*]|\d+\.) ", "\n", line) for line in text.splitlines()]
    return [" ".join(one.split()) for one in re.split(r"\n\s*\n", "\n".join(lines)) if one.strip()]


def sentences(text):
    """Returns the sentences of a page."""
    found = []
    for paragraph in prose(text):
        spans = re.sub(r"`[^`]*`", "CODE", paragraph)
        found += [one.strip() for one in re.split(r"(?<=[.!?:;])\s+(?=[A-Z\"'(])", spans) if one.strip()]
    return found


def count(text):
    """Returns the number of words outside code blocks, in paragraphs, headings and tables."""
    text = re.sub(r"^ *```.*?^ *```", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"<!--.*?-->|\]\([^)]*\)|<[^>]+>", " ", text, flags=re.DOTALL)
    return len(re.findall(r"[^\s|]*\w[^\s|]*", text))


def pages():
    """Returns the hand-written pages."""
    root = os.path.dirname(DOCS)
    return sorted([*glob.glob(os.path.join(DOCS, "**", "*.md"), recursive=True), os.path.join(root, "README.md")])


def check(paths):
    """Returns (lines of the report, whether all limits are met)."""
    lines, met, total, all_sentences, all_long = [], True, 0, 0, 0
    for path in paths:
        with open(path, encoding="utf-8") as file:
            text = file.read()
        name = os.path.relpath(path, DOCS).removeprefix("../")
        words, found = count(text), sentences(text)
        long = [one for one in found if len(one.split()) > MAX_SENTENCE]
        limit = MAX_WORDS.get(name, MAX_WORDS["guide"] if name.startswith("guide/") else None)
        over = limit is not None and words > limit
        met &= not over
        total += words if name != "README.md" else 0
        all_sentences, all_long = all_sentences + len(found), all_long + len(long)
        lines.append(f"{name}: {words} words{f', more than {limit}' if over else ''}; {len(long)} of {len(found)} sentences are long")
        lines += [f"    {len(one.split())} words: {one}" for one in long]
        for word, better in REPLACED.items():
            if hits := re.findall(rf"\b{word}\b", " ".join(prose(text)), re.IGNORECASE):
                met = False
                lines.append(f"    {word!r} ({len(hits)}): {better}")
    if all_long > MAX_LONG_SENTENCES * all_sentences or total > MAX_WORDS[""]:
        met = False
    lines.append(f"{total} words in docs/, at most {MAX_WORDS['']}; {all_long} of {all_sentences} sentences over {MAX_SENTENCE} words")
    return lines, met


if __name__ == "__main__":
    report, met = check(sys.argv[1:] and [os.path.abspath(path) for path in sys.argv[1:]] or pages())
    print("\n".join(report))
    sys.exit(0 if met else 1)
