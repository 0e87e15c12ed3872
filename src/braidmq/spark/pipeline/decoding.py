"""Bytes by a schema of the registry: the step `decode`, and what `validate` asks beyond types.

Decoding by columns looks at types only. A JSON Schema says more (required fields, patterns, ranges), and Avro and Protobuf do not;
so `validate` asks the schema itself about JSON values that could be decoded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.types import StringType, StructField, StructType

from braidmq.base.errors import BraidError
from braidmq.schemas.schema import canonical_kind
from braidmq.spark.decode import Decoding
from braidmq.spark.pipeline.context import Context
from braidmq.spark.pipeline.definition import Decode
from braidmq.spark.pipeline.frames import require_columns


def decoding_of(context: Context, schema: str) -> Decoding:
    """The latest version of a schema, as it is now."""
    with context.client() as client:
        found = client.schema.get(schema)
    return Decoding(found.name, found.type, found.version, found.definition)


def decode(frame: DataFrame, step: Decode, context: Context, what: str) -> DataFrame:
    """The rows with the struct and with `error`, which says why there is none."""
    from pyspark.sql.pandas.types import from_arrow_type

    require_columns(frame, [step.column], what)
    kind = frame.schema[step.column].dataType.typeName()
    if kind not in ("binary", "string"):
        raise BraidError("INVALID_ARGUMENT", reason=f"{what}: the column {step.column} is {kind}, not binary or string")
    decoding = decoding_of(context, step.schema)
    kept = [field for field in frame.schema.fields if field.name not in (step.into, "error")]
    made = StructField(step.into, from_arrow_type(decoding.decoder().type))
    column, names = step.column, [field.name for field in kept]

    def run(batches: Iterable[Any]) -> Iterator[Any]:
        import pyarrow as pa

        decoder = decoding.decoder()
        for batch in batches:
            data, error = decoder(batch.column(column).cast(pa.binary()))
            yield pa.RecordBatch.from_arrays([*[batch.column(name) for name in names], data, error], [*names, made.name, "error"])

    return frame.mapInArrow(run, StructType([*kept, made, StructField("error", StringType())]))


def check_rules(frame: DataFrame, context: Context, schema: str) -> DataFrame:
    """The rows, with `error` also where a JSON value breaks a rule of its schema that is not about types."""
    decoding = decoding_of(context, schema)
    if canonical_kind(decoding.kind) != "json" or "value" not in frame.columns:
        return frame
    names = frame.columns

    def run(batches: Iterable[Any]) -> Iterator[Any]:
        import pyarrow as pa

        from braidmq.schemas.compiling import compile_schema

        check = compile_schema(decoding.kind, decoding.definition).check
        for batch in batches:
            values, errors = batch.column("value").to_pylist(), batch.column("error").to_pylist()
            for index, value in enumerate(values):
                if errors[index] is None and value is not None:
                    errors[index] = ", ".join(check(value)) or None
            columns = [pa.array(errors, pa.string()) if name == "error" else batch.column(name) for name in names]
            yield pa.RecordBatch.from_arrays(columns, names)

    return frame.mapInArrow(run, frame.schema)
