"""Reprocesses records that a pipeline has read before, and dead letters after a fix, without duplicates in the sinks.

A range of offsets, or of time, is read once more and goes through the steps as they are now. What was made of the same records
before is replaced, by the rule of each sink:

    a table with a `key`                               a row replaces the one with its key, unless that is of a later record
    a table whose rows have topic, partition, offset   rows of the range go and the new ones come, in one commit
    anything else                                      cannot be replayed into: what a topic or a file holds is not taken back

So a replay can be repeated, and one that died half-way is simply done again. Only what the pipeline has passed is replayed: the
rest it will read anyway. Windows, joins of streams and `deduplicate` need records beyond the range, so a pipeline with such steps
is refused, and so is what could put an old row over a new one: a table with a `key` whose rows do not say which record they come
from, or with `delete_when`, as a deleted row leaves nothing that a replay could see. A record that is rejected again gets no second
dead letter.

Dead letters were never in the sinks. They go back to their topic, each once (the broker sees to that), and come through the
pipeline like any record.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pyspark.sql import SparkSession

from braidmq.base.errors import BraidError
from braidmq.base.naming import DEAD_LETTER_ENDING
from braidmq.base.spans import read_span
from braidmq.client.provenance import provenance
from braidmq.client.sync import Client
from braidmq.spark.pipeline.batches import BatchJob, Result
from braidmq.spark.pipeline.context import Context
from braidmq.spark.pipeline.definition import Deduplicate, Join, Sql, Window
from braidmq.spark.pipeline.planning import plan
from braidmq.spark.pipeline.query_text import puts_together
from braidmq.spark.pipeline.sections import Section
from braidmq.spark.pipeline.sinks import Batch, Replacing, make_sink
from braidmq.spark.pipeline.sinks.sink import Span
from braidmq.spark.pipeline.sources import read_source
from braidmq.spark.pipeline.whereabouts import describe_place


@dataclass(frozen=True, slots=True)
class Replayed:
    spans: Sequence[Span]
    records: int
    result: Result


def parse_span(text: str) -> Span:
    """`topic:partition:first-end`; the end is not included."""
    return Span(*read_span(text))


def spans_of_time(client: Client, context: Context, since_ms: int, until_ms: int | None) -> list[Span]:
    """The offsets that were written in a time, of every partition of the source."""
    spans = []
    for topic in context.source.topics or ():
        for part in client.metadata(topic).partitions:
            first = client.offset_for_time(topic, part.partition, since_ms)
            end = part.newest if until_ms is None else client.offset_for_time(topic, part.partition, until_ms)
            if first < end:
                spans.append(Span(topic, part.partition, first, end))
    return spans


def replay(
    spark: SparkSession, context: Context, client: Client, spans: Sequence[Span], *, mode: str = "replay", skip: Sequence[str] = ()
) -> Replayed:
    """Read spans of the source again and replace what was made of them; sinks named in `skip` are left alone."""
    context, spans = prepare(spark, context, client, spans, skip)
    name = context.pipeline.name
    if not spans:
        return Replayed((), 0, Result())
    started = client.pipeline.start(name, mode, describe_place(spark), replace=False)
    outcome, reason = "failed", "it ended without a word"
    try:
        client.pipeline.report(name, started.run, b"", [("info", f"{mode} of {spoken(spans)}")])
        done = reprocess(spark, context, client, spans, mode, started.run, str(started.run))
        outcome, reason = "finished", ""
    except BraidError as fault:
        reason = fault.text
        raise
    finally:
        level = "error" if outcome == "failed" else "info"
        client.pipeline.report(name, started.run, b"", [(level, f"{mode} {outcome}{': ' if reason else ''}{reason}"[:4000])])
        client.pipeline.end(name, started.run, outcome, reason)
    return done


def prepare(
    spark: SparkSession, context: Context, client: Client, spans: Sequence[Span], skip: Sequence[str]
) -> tuple[Context, list[Span]]:
    """The pipeline without the sinks to skip, and of some spans what it has passed and the topics still hold; refuses the rest."""
    context = _without(context, skip)
    spans = _within_reach(client, context, spans)
    refusals = _refusals(spark, context)
    if refusals:
        raise BraidError("PIPELINE_REPLAY_REFUSED", pipeline=context.pipeline.name, reason="; ".join(refusals))
    return context, spans


def reprocess(
    spark: SparkSession, context: Context, client: Client, spans: Sequence[Span], mode: str, run: int, mark: str
) -> Replayed:
    """Take prepared spans through the steps and into the sinks, as part of a run; `mark` tells it from others of the pipeline."""
    name = context.pipeline.name
    frame = read_source(spark, context, stream=False, bounds=_bounds(client, context, spans))
    job = BatchJob(context, f"{name}-{mode}-{mark}", False, run, _letters_there(client, context, spans))
    result = job.process(frame, Batch(f"{mode}-{name}-{mark}", 0), Replacing(spans))
    return Replayed(spans, sum(span.end - span.first for span in spans), result)


def _without(context: Context, skip: Sequence[str]) -> Context:
    labels = {make_sink(each, context).label: each for each in context.pipeline.sinks}
    for name in skip:
        if name not in labels:
            raise BraidError("INVALID_ARGUMENT", reason=f"there is no sink {name}; there are {', '.join(labels)}")
    kept = tuple(each for label, each in labels.items() if label not in skip)
    if not kept:
        raise BraidError("INVALID_ARGUMENT", reason="no sink is left")
    return replace(context, pipeline=replace(context.pipeline, sinks=kept))


def _refusals(spark: SparkSession, context: Context) -> list[str]:
    """Why this pipeline cannot be replayed; nothing when it can."""
    if context.source.topics is None:
        return ["only topics can be read again from a place"]
    found = [
        f"step {index + 1} {why}" for index, step in enumerate(context.pipeline.steps) if (why := _needs_more_than_a_range(step))
    ]
    columns = [name for name, _ in [stage for stage in plan(spark, context) if stage.columns][-1].columns]
    return found + [why for each in context.pipeline.sinks if (why := make_sink(each, context).refuses(columns))]


def _needs_more_than_a_range(step: Section) -> str:
    """Why the records of a range alone do not make the rows that the stream made of them; empty when they do."""
    match step:
        case Window():
            return "needs records beyond the range"
        case Join() if step.topic is not None:
            return "needs records beyond the range"
        case Deduplicate():
            return (
                "keeps the first row of each key, which may lie before the range, so duplicates could come in; have a pipeline of "
                "another name write a new table, or give the table a `key` instead of this step"
            )
        case Sql() if words := puts_together(step.query):
            return f"makes one row of several ({words}), and the range may not hold all of them"
        case _:
            return ""


def _within_reach(client: Client, context: Context, spans: Sequence[Span]) -> list[Span]:
    """Spans without what the topics do not hold any more, and without what the pipeline has yet to read."""
    clipped = []
    for topic in dict.fromkeys(span.topic for span in spans):
        if topic not in (context.source.topics or ()):
            raise BraidError("INVALID_ARGUMENT", reason=f"the pipeline does not read {topic}")
        oldest = {part.partition: part.oldest for part in client.metadata(topic).partitions}
        read = {part.partition: part.committed for part in client.group.lag(context.group, topic)}
        for span in spans:
            if span.topic == topic:
                if span.partition not in oldest:
                    raise BraidError("PARTITION_NOT_FOUND", partition=span.partition)
                first, end = max(span.first, oldest[span.partition]), min(span.end, read.get(span.partition, 0))
                if first < end:
                    clipped.append(replace(span, first=first, end=end))
    return clipped


def _bounds(client: Client, context: Context, spans: Sequence[Span]) -> dict[str, str]:
    """Options that make the source begin and end there; partitions without a span are read not at all."""
    starting: dict[str, dict[str, int]] = {}
    ending: dict[str, dict[str, int]] = {}
    for topic in context.source.topics or ():
        here = {span.partition: span for span in spans if span.topic == topic}
        for part in client.metadata(topic).partitions:
            span = here.get(part.partition, Span(topic, part.partition, part.oldest, part.oldest))
            starting.setdefault(topic, {})[str(part.partition)] = span.first
            ending.setdefault(topic, {})[str(part.partition)] = span.end
    return {"startingOffsets": json.dumps(starting), "endingOffsets": json.dumps(ending)}


def _letters_there(client: Client, context: Context, spans: Sequence[Span]) -> list[tuple[str, int, int]]:
    """Records of the spans that this pipeline has made letters of before."""
    found = []
    topics = set(client.list_topics())
    for topic in dict.fromkeys(span.topic for span in spans):
        dead = topic + DEAD_LETTER_ENDING
        for part in client.metadata(dead).partitions if dead in topics else ():
            offset = part.oldest
            while offset < part.newest:
                fetched = client.fetch(dead, part.partition, offset)
                for record in fetched.records:
                    story = provenance(record)
                    if story is not None and any(
                        (story.topic, story.partition) == (span.topic, span.partition) and span.first <= story.offset < span.end
                        for span in spans
                    ):
                        found.append((story.topic, story.partition, story.offset))
                if fetched.next_offset <= offset:
                    break
                offset = fetched.next_offset
    return found


def spoken(spans: Sequence[Span]) -> str:
    return ", ".join(f"{span.topic}:{span.partition}:{span.first}-{span.end}" for span in spans[:20])


def send_letters_back(client: Client, context: Context) -> int:
    """Send the dead letters of this pipeline back to their topics, each once; returns how many."""
    matching = f"^pipeline {re.escape(context.pipeline.name)}: "
    topics = context.source.topics or ([context.pipeline.dead_letters] if context.pipeline.dead_letters else [])
    return sum(client.dlq.retry(topic, matching=matching) for topic in topics)
