"""
Find mistakes that make a FileCheck file pass without testing anything, by reading its text.

FileCheck ignores unknown directives. A directive with a wrong letter, a blank before its colon or no colon
is a comment, and a RUN line that does not end in filecheck discards its output.
"""

import re
from collections.abc import Iterator

from ir_files import run_lines

_SUFFIXES = ("", "-NEXT", "-SAME", "-NOT", "-DAG", "-LABEL", "-EMPTY")
_LIT_WORDS = {"RUN", "XFAIL", "REQUIRES", "UNSUPPORTED", "COM", "NO-FILECHECK", "NO-ROUND-TRIP"}
_EXPECTED = {"expected-error", "expected-warning", "expected-note", "expected-remark"}

_PREFIX_OPTION = re.compile(r"--?check-prefix(?:es)?[= ](\S+)")
_COMMENT_WORD = re.compile(r"(?<!\S)/+\s*(?P<word>[A-Za-z][\w-]*)(?:\{LITERAL\})?(?P<colon>\s*:)?")
_EXPECTATION = re.compile(r"//\s*(expect\w*-[\w-]+)")
_COUNT = re.compile(r"-COUNT-\d+$")
_REASON = re.compile(r"^\s*//\s*NO-FILECHECK:\s*\S+", re.MULTILINE)


def complaints(text: str) -> list[str]:
    """Return the mistakes in the text of a test file, with line numbers if they have one."""
    commands = run_lines(text)
    prefixes = _prefixes(commands)
    return [
        *_run_complaints(text, commands),
        *_prefix_complaints(text, commands, prefixes),
        *_word_complaints(text, prefixes),
    ]


def _run_complaints(text: str, commands: list[str]) -> Iterator[str]:
    if not commands:
        yield "has no RUN line"
    for command in commands:
        if _last_program(command) == "filecheck" or _REASON.search(text):
            continue
        if "--verify-diagnostics" not in command:
            yield f"does not end in filecheck: {command!r}; pipe it there or add // NO-FILECHECK: reason"
        elif not any(word in _EXPECTED for word in _EXPECTATION.findall(text)):
            yield "--verify-diagnostics without one expected-error: nothing is checked"


def _last_program(command: str) -> str:
    words = re.split(r"\||&&|;", command)[-1].split()
    return words[0] if words else ""


def _prefixes(commands: list[str]) -> set[str]:
    """Return the directive prefixes that the filecheck calls look for."""
    prefixes: set[str] = set()
    for command in commands:
        if _last_program(command) == "filecheck":
            named = [prefix for value in _PREFIX_OPTION.findall(command) for prefix in value.split(",")]
            prefixes.update(named or ["CHECK"])
    return prefixes


def _prefix_complaints(text: str, commands: list[str], prefixes: set[str]) -> Iterator[str]:
    for prefix in sorted(prefixes):
        if not re.search(rf"//\s*{re.escape(prefix)}(-[A-Z0-9-]+)?(\{{LITERAL\}})?:\s*\S", text):
            yield f"no directive with the prefix {prefix}, which a RUN line looks for"


def _word_complaints(text: str, prefixes: set[str]) -> Iterator[str]:
    known = {prefix + suffix for prefix in prefixes for suffix in _SUFFIXES} | _LIT_WORDS
    for number, line in enumerate(text.splitlines(), 1):
        for word in _EXPECTATION.findall(line):
            if word not in _EXPECTED:
                yield f"line {number}: {word!r} is no expectation; one of {', '.join(sorted(_EXPECTED))}"
        for match in _COMMENT_WORD.finditer(line):
            if fault := _fault(match, known):
                yield f"line {number}: {match[0].strip()!r} {fault}"


def _fault(match: re.Match[str], known: set[str]) -> str | None:
    """Return the mistake in the first word of a comment; None for a directive and for prose."""
    word, colon = _COUNT.sub("", match["word"]), match["colon"]
    if word in known:
        if not match[0].startswith("//"):
            return "starts with one slash only"
        return None if colon == ":" else "lacks the colon right after the directive"
    if colon and word.isupper():
        return "is in capitals like a directive but is none: misspelt, or a prefix that no RUN line names"
    if (colon or word.isupper()) and min(_distance(word.upper(), name) for name in known) <= _slack(word):
        return "looks like a misspelt directive"
    return None


def _slack(word: str) -> int:
    """Return the largest edit distance of a likely misspelling of `word`: short words are close to everything."""
    return 2 if len(word) >= 5 else 0


def _distance(left: str, right: str) -> int:
    """Return Levenshtein's distance: the fewest insertions, deletions and substitutions between two words."""
    row = list(range(len(right) + 1))
    for i, a in enumerate(left, 1):
        previous, row[0] = row[0], i
        for j, b in enumerate(right, 1):
            previous, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, previous + (a != b))
    return row[-1]
