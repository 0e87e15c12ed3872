"""The OpenAPI document says what the API does: schemathesis tries every operation with what the document allows."""

from __future__ import annotations

import warnings

import hypothesis
import pytest
import schemathesis
from embedded_broker import EmbeddedBroker
from schemathesis.checks import load_all_checks
from web_client import WebClient

from braidmq.admin.api import ENDPOINTS

load_all_checks()
_CHECKS = [
    schemathesis.checks.CHECKS.get_by_names([name])[0]
    for name in ("not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance")
]
_ENDLESS = {"tail_messages", "follow_figures"}
"""Streams do not end, and have a test of their own."""


def test_every_endpoint_is_in_the_document(web: WebClient) -> None:
    document = web.get("/api/v1/openapi.json").json
    assert document == web.get("/swagger.json").json
    operations = {op["operationId"]: op for path in document["paths"].values() for op in path.values()}
    assert set(operations) == {endpoint.name for endpoint in ENDPOINTS}
    assert all(op["summary"] for op in operations.values())
    assert len({endpoint.name for endpoint in ENDPOINTS}) == len(ENDPOINTS)


@pytest.mark.parametrize("name", sorted({endpoint.name for endpoint in ENDPOINTS} - _ENDLESS))
def test_an_operation_does_what_the_document_says(web: WebClient, standing: EmbeddedBroker, name: str) -> None:
    schema = _schema(web)
    operation = schema.find_operation_by_id(name)

    @hypothesis.settings(max_examples=5, database=None, suppress_health_check=list(hypothesis.HealthCheck), derandomize=True)
    @hypothesis.given(case=operation.as_strategy())
    def tried(case: schemathesis.Case) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            response = case.call(base_url=f"http://{web.address}")
        case.validate_response(response, checks=_CHECKS)

    tried()


_SCHEMAS: dict[str, schemathesis.schemas.BaseSchema] = {}


def _schema(web: WebClient) -> schemathesis.schemas.BaseSchema:
    if web.address not in _SCHEMAS:
        _SCHEMAS[web.address] = schemathesis.openapi.from_dict(web.get("/api/v1/openapi.json").json)
    return _SCHEMAS[web.address]
