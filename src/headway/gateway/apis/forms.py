"""The field `model` of a form (multipart/form-data).

Readers of forms differ in what they accept, so a form that one of them could read in another way is refused: otherwise,
a client could name one model to the gateway and another one to the engine.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from headway.errors import HeadwayError

KIND: Final = b"multipart/form-data"
LINE: Final = b"\r\n"
UTF_8: Final = rb'(?: *; *charset="?utf-8"?)?'
CONTENT_TYPE: Final = re.compile(
    rb"multipart/form-data%b *; *boundary=(\"?)([0-9A-Za-z'()+_,./:=?-]{1,70})\1%b *" % (UTF_8, UTF_8), re.IGNORECASE
)
FIELD: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):([^\r\n]*)")
# The only parameters besides the name are those of the file's name.
DISPOSITION: Final = re.compile(
    rb' *form-data *; *name=(?:"([^"\\\r\n]*)"|([!#$&\'+.^_`|~0-9A-Za-z-]+))'
    rb'(?: *; *filename\*?=(?:"(?:[^"\\]|\\.)*"|[^";\s]*))* *',
    re.IGNORECASE,
)
# Header fields of a field that do not change its content.
HARMLESS: Final = re.compile(
    rb'content-type: *text/plain(?: *; *charset="?(?:utf-8|us-ascii|iso-8859-1)"?)? *'
    rb"|content-transfer-encoding: *(?:7bit|8bit|binary) *|content-length: *\d+ *",
    re.IGNORECASE,
)
MODEL: Final = re.compile(rb"[^\r\n]{1,1024}")


def find_form_model(kind: bytes, body: bytes) -> tuple[int, int] | None:
    """Return the offsets at which the value of the field `model` begins and ends; None if there is no such field.
    `kind` is the value of Content-Type."""
    found: tuple[int, int] | None = None
    for name, begin, end, plain in _parts(kind, body):
        if name != b"model":
            continue
        if found is not None:
            raise HeadwayError("the form has the field model twice. Send it once.")
        if not plain or not MODEL.fullmatch(body, begin, end):
            raise HeadwayError("the form's field model is not plain text on one line.")
        found = begin, end
    return found


def _parts(kind: bytes, body: bytes) -> Iterator[tuple[bytes, int, int, bool]]:
    """Yield name, offset and end of the content of each field, and whether the content is plain text."""
    boundary = CONTENT_TYPE.fullmatch(kind)
    if boundary is None:
        raise HeadwayError("the Content-Type of the form is not multipart/form-data with one boundary.")
    delimiter = b"--" + boundary[2]
    ends = [match.start() for match in re.finditer(re.escape(delimiter), body)]
    if not ends or ends[0] != 0 or any(body[at - 2 : at] != LINE for at in ends[1:]):
        raise HeadwayError("the form has its boundary within a line, or does not begin with it.")
    if body[ends[-1] + len(delimiter) :] not in (b"--", b"--\r\n"):
        raise HeadwayError("the form does not end with its boundary.")
    for at, end in pairwise(ends):
        begin = at + len(delimiter)
        head = body.find(LINE * 2, begin, end - 2)
        if body[begin : begin + 2] != LINE or head < 0:
            raise HeadwayError("a field of the form has no header.")
        name, plain = _read_head(body[begin + 2 : head])
        yield name, head + 4, end - 2, plain


def _read_head(head: bytes) -> tuple[bytes, bool]:
    """Return the name of a field of a form, and whether its content is plain text."""
    name: bytes | None = None
    plain = True
    for line in head.split(LINE):
        field = FIELD.fullmatch(line)
        key = b"" if field is None else field[1].lower()
        if field is not None and key == b"content-disposition" and name is None:
            found = DISPOSITION.fullmatch(field[2])
            name = None if found is None else found[1] or found[2] or b""
        elif not key or key == b"content-disposition":
            name = None
            break
        else:
            plain = plain and HARMLESS.fullmatch(line) is not None
    if name is None:
        raise HeadwayError("the header of a field of the form is not in the usual form.")
    return name, plain
