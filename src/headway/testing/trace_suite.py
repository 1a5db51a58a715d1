"""The suite for trace formats: reads a sample file unchanged, truncated, and with an invalid line."""

import pathlib
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

from headway.errors import HeadwayError
from headway.testing.suite import same_twice
from headway.workload.traces.record import Format, Options, Record

KINDS = (None, "completion", "chat", "agentic", "reasoning")


class TraceReaderSuite:
    """Tests of a trace format: `format` is its `Format`, and `sample` is a small file with at least two requests."""

    format: ClassVar[Format]
    sample: ClassVar[pathlib.Path]

    def read(self, path: pathlib.Path, **options: Any) -> list[Record]:
        reader = self.format.read(path, Options(**options))
        assert reader.info.format == self.format.name
        return list(reader.records)

    def test_the_sample_is_told_and_other_text_is_not(self) -> None:
        lines = [line.strip() for line in self.sample.read_bytes().split(b"\n") if line.strip()]
        assert self.format.tell(self.sample, lines), "`tell` does not recognise the sample."
        assert not self.format.tell(pathlib.Path("other.txt"), [b"some other text", b"1 2 3"])
        assert not self.format.tell(pathlib.Path("empty.txt"), [])

    def test_the_same_file_gives_the_same_records(self) -> None:
        same_twice(lambda: self.read(self.sample), "records")

    def test_records_are_such_as_can_be_replayed(self) -> None:
        records = self.read(self.sample)
        info = self.format.read(self.sample, Options()).info
        assert len(records) >= 2, "The sample must have at least two requests."
        last_ps = 0
        for record in records:
            assert type(record.prompt_tokens) is int and record.prompt_tokens >= 0
            assert type(record.output_tokens) is int and record.output_tokens >= 0
            assert record.kind in KINDS
            if record.at_ps is not None:
                assert type(record.at_ps) is int and record.at_ps >= 0
                if info.clock == "trace":
                    assert record.at_ps >= last_ps, "Records must be in order of time."
                    last_ps = record.at_ps
            if record.blocks is not None and info.block_tokens is not None:
                count = sum(count for _, count in record.blocks)
                assert count * info.block_tokens >= record.prompt_tokens or info.whole_blocks

    def test_reading_leaves_the_file_as_it_is(self) -> None:
        before = self.sample.read_bytes()
        self.read(self.sample)
        assert self.sample.read_bytes() == before

    def test_what_is_wrong_is_told_with_the_file_s_name(self) -> None:
        whole = self.sample.read_bytes()
        with TemporaryDirectory() as folder:
            for number, data in enumerate((whole[: len(whole) * 2 // 3], whole + b"\n\x01{ ,,, no such line", b"\n")):
                path = pathlib.Path(folder) / f"wrong-{number}{self.sample.suffix}"
                path.write_bytes(data)
                try:
                    self.read(path)
                except HeadwayError as error:
                    assert path.name in str(error), f"The error does not name the file: {error}"
