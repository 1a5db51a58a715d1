"""Prompts as text: a token is a space and a word of three letters, and equal prefixes are equal bytes.

Such a word is one token in the usual tokenizers. Its four bytes are also one token of the emulator. The word at a
position depends only on the position and on the path's key at that position, so prompts that share a path share their
text.
"""

from functools import lru_cache
from hashlib import shake_128
from typing import Final

from headway.hashing import stable
from headway.types import Request

STRETCH: Final = 256  # number of tokens in a stretch: the text of a stretch is generated and cached together
KEPT: Final = 4096  # maximum number of cached stretches, about 1 kB each
LETTERS: Final = """
the and for are but not you all any can had her was one our out day get has him his how man new now old
see two way who boy did its let put say she too use dad mom act add age ago aid aim air arm art ask ate
bad bag bar bat bed bee bet big bit box bus buy cab cap car cat cow cry cup cut die dig dog dry due ear
eat egg end eye fan far fat fee few fit fix fly fun gap gas got guy hat hit hot ice ill ink inn jam jar
jet job joy key kid lab lap law lay led leg lie lip log lot low mad map may men met mix mud net nor nut
odd off oil own pad pan pay pen per pet pie pig pin pit pop pot pub ran raw red rid rob rod row run sad
sat saw sea set sir sit six ski sky son sum sun tax tea ten tie tip toe ton top toy try van via war web
wet why win won yes yet zip zoo ace bay bid bow cop dam dim dot fed fig fog fox gym hen hip hub hug jaw
kit lid mob mug nap oak pal paw pea rat rib rim rug sew shy sin sip tab tag tan tap tin tub vet wax wed
wig wit ant ape ash bug bun cod cue den elf elm fur gem gum hay hop ivy jog keg lag mat
"""
WORDS: Final = tuple(f" {word}".encode() for word in LETTERS.split())
BYTES: Final = len(WORDS[0])


def prompt_text(request: Request, start: int = 0) -> str:
    """Return the text of a prompt, beginning with token `start`. Tokens after the end of the path are unique to this
    prompt."""
    parts: list[bytes] = []
    begin, path = 0, request.path
    for key, end in zip(path.keys, path.ends, strict=True):
        _add_run(parts, key, max(begin, start), min(end, request.prompt_tokens))
        begin = end
    if begin < request.prompt_tokens:
        _add_run(parts, stable("own", request.id), max(begin, start), request.prompt_tokens)
    return b"".join(parts).decode()


def _add_run(parts: list[bytes], key: int, start: int, end: int) -> None:
    for stretch in range(start // STRETCH, -(-end // STRETCH)):
        first = stretch * STRETCH
        text = _stretch(key, stretch)
        if start > first or end < first + STRETCH:
            text = text[(max(start, first) - first) * BYTES : (end - first) * BYTES]
        parts.append(text)


@lru_cache(KEPT)
def _stretch(key: int, number: int) -> bytes:
    return b"".join([WORDS[byte] for byte in shake_128(f"{key}.{number}".encode()).digest(STRETCH)])
