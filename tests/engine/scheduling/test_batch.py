"""Gathering the jobs of a batch into arrays, and scattering arrays back into answers."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st

from trireme.engine.clock import SystemClock
from trireme.engine.config.model import (
    BatchInput,
    BatchOutput,
    ModelConfig,
    ModelConfigMessage,
    ModelInput,
    ModelOutput,
)
from trireme.engine.datatypes import BYTES, DATATYPES, FP32, INT32, UINT8, DataType
from trireme.engine.errors import InternalError, InvalidArgumentError, TriremeError, UnsupportedError
from trireme.engine.job import ExecutionBatch, Job
from trireme.engine.request import InferenceRequest, InferenceResponse
from trireme.engine.scheduling.batch import BatchLayout, encode_text
from trireme.engine.tensor import Tensor


class NoReply:
    def deliver(self, outcome: Any, final: bool) -> bool:
        raise AssertionError("answers of a batch are collected, not delivered")


def tensor(values: Any, datatype: DataType = FP32, name: str = "X", wire: bool = True) -> Tensor:
    if datatype is BYTES:
        array = np.empty(np.shape(values), dtype=object)
        array[...] = values
    else:
        array = np.array(values, dtype=datatype.storage)
    made = Tensor(name, datatype, array.shape, array=array)
    return Tensor(name, datatype, array.shape, bytes(made.buffer)) if wire else made


def job(*inputs: Tensor, rows: int = 1, outputs: tuple[str, ...] = (), id_: str = "") -> Job:
    request = InferenceRequest("m", id=id_, requested_outputs=outputs)
    return Job(request, {each.name: each for each in inputs}, rows, "m", 1, NoReply())


def in_batch(*jobs: Job) -> ExecutionBatch:
    return ExecutionBatch(jobs, "m_0", SystemClock())


def scatter(layout: BatchLayout, jobs: Sequence[Job], outputs: Sequence[np.ndarray]) -> None:
    layout.answer(layout.split(jobs, outputs))


def responses(batch: ExecutionBatch) -> list[InferenceResponse]:
    assert [final for _, _, final in batch.answers] == [True] * len(batch.jobs)
    outcomes = [outcome for _, outcome, _ in batch.answers]
    assert all(isinstance(outcome, InferenceResponse) for outcome in outcomes), outcomes
    return outcomes  # type: ignore[return-value]


def config(
    inputs: tuple[ModelInput, ...] = (ModelInput("X", FP32, (2,)),),
    outputs: tuple[ModelOutput, ...] = (ModelOutput("Y", FP32, (2,)),),
    max_batch_size: int = 8,
    **rest: Any,
) -> ModelConfig:
    return ModelConfig("m", max_batch_size=max_batch_size, input=inputs, output=outputs, **rest)


class TestGather:
    def test_the_input_of_a_single_job_is_a_view_on_the_received_bytes(self) -> None:
        received = bytearray(np.arange(4, dtype=np.float32).tobytes())
        one = job(Tensor("X", FP32, (2, 2), memoryview(received)), rows=2)
        _, inputs = BatchLayout(config()).gather([one])
        assert np.shares_memory(inputs["X"], np.frombuffer(received, np.uint8))
        assert inputs["X"].tolist() == [[0, 1], [2, 3]]

    def test_bytes_at_an_odd_address_are_moved_to_an_even_one(self) -> None:
        received = bytes(1) + np.array([[5, 6]], dtype=np.float32).tobytes()
        body = np.empty(len(received) + 8, np.uint8)
        start = -body.ctypes.data % 8 + 1
        view = body.data[start : start + 8]
        view[:] = received[1:]
        _, inputs = BatchLayout(config()).gather([job(Tensor("X", FP32, (1, 2), view))])
        assert inputs["X"].flags.aligned
        assert inputs["X"].tolist() == [[5, 6]]

    def test_rows_of_several_jobs_are_joined_in_batch_order(self) -> None:
        jobs = [
            job(tensor([[1, 2]])),
            job(tensor([[3, 4], [5, 6]], wire=False), rows=2),
            job(tensor([[7, 8]])),
        ]
        kept, inputs = BatchLayout(config()).gather(jobs)
        assert list(kept) == jobs
        assert inputs["X"].dtype == np.float32
        assert inputs["X"].tolist() == [[1, 2], [3, 4], [5, 6], [7, 8]]

    def test_bytes_elements_stay_bytes_unless_the_framework_wants_text(self) -> None:
        layout_input = (ModelInput("X", BYTES, (1,)),)
        jobs = [job(tensor([[b"a"]], BYTES)), job(tensor([[b"\xff"], [b""]], BYTES), rows=2)]
        _, inputs = BatchLayout(config(layout_input)).gather(jobs)
        assert inputs["X"].tolist() == [[b"a"], [b"\xff"], [b""]]

    def test_text_is_decoded_and_a_bad_element_fails_its_job_alone_naming_input_and_index(self) -> None:
        layout = BatchLayout(config((ModelInput("X", BYTES, (2,)),)), text=True)
        batch = in_batch(
            job(tensor([[b"a", "é\0".encode()]], BYTES)),
            job(tensor([[b"ok", b"ab\xff"]], BYTES), id_="seven"),
            job(tensor([[b"", b"c"]], BYTES)),
        )
        kept, inputs = layout.gather(batch.jobs)
        assert list(kept) == [batch.jobs[0], batch.jobs[2]]
        assert inputs["X"].tolist() == [["a", "é\0"], ["", "c"]]
        ((failed, error, final),) = batch.answers
        assert failed is batch.jobs[1]
        assert final
        assert isinstance(error, InvalidArgumentError)
        assert error.message == (
            "[request id: seven] input 'X' must hold UTF-8 text, but its element 1 is not: invalid start byte at byte 2"
        )

    @pytest.mark.parametrize(("strategy", "rows"), [("direct { }", [0, 1, 2]), ("oldest { }", [0, 2]), ("", [0, 1, 2])])
    def test_where_a_row_is_a_slot_a_failed_job_keeps_its_row(self, strategy: str, rows: list[int]) -> None:
        """Its strings are empty then; other tensors are as they came. No strategy is the direct one."""
        inputs = (ModelInput("X", BYTES, (1,)), ModelInput("N", INT32, (1,)))
        batching = text_format.Parse(f"sequence_batching {{ {strategy} }}", ModelConfigMessage())
        layout = BatchLayout(config(inputs, has_sequence_batching=True, message=batching), text=True)
        texts = (b"a", b"\xff", b"c")
        batch = in_batch(
            *(job(tensor([[each]], BYTES), tensor([[at]], INT32, "N")) for at, each in enumerate(texts)),
        )
        kept, arrays = layout.gather(batch.jobs)
        assert list(kept) == [batch.jobs[row] for row in rows]
        assert arrays["X"].tolist() == [[["a"], [""], ["c"]][row] for row in rows]
        assert arrays["N"].tolist() == [[row] for row in rows]
        ((failed, error, _),) = batch.answers
        assert (failed, type(error)) == (batch.jobs[1], InvalidArgumentError)

    def test_no_arrays_are_made_when_no_job_is_left(self) -> None:
        batch = in_batch(job(tensor([[b"\x80"]], BYTES)))
        assert BatchLayout(config(), text=True).gather(batch.jobs) == ([], {})
        assert batch.jobs[0].answered

    @pytest.mark.parametrize("wire", [True, False])
    def test_ragged_inputs_are_joined_flat(self, wire: bool) -> None:
        layout = BatchLayout(config((ModelInput("X", FP32, (-1,), allow_ragged_batch=True),)))
        jobs = [job(tensor([[1, 2, 3]], wire=wire)), job(tensor([[4], [5]], wire=wire), rows=2)]
        assert layout.gather(jobs)[1]["X"].tolist() == [1, 2, 3, 4, 5]
        assert layout.gather(jobs[1:])[1]["X"].tolist() == [4, 5]

    @pytest.mark.parametrize(("text", "expected"), [(False, [b"a", b"b", b"c"]), (True, ["a", "b", "c"])])
    def test_ragged_strings_are_joined_flat(self, text: bool, expected: list) -> None:
        layout = BatchLayout(config((ModelInput("X", BYTES, (-1,), allow_ragged_batch=True),)), text=text)
        jobs = [job(tensor([[b"a", b"b"]], BYTES)), job(tensor([[b"c"]], BYTES))]
        assert layout.gather(jobs)[1]["X"].tolist() == expected

    def test_shapes_that_do_not_go_together_are_an_error_not_garbage(self) -> None:
        jobs = [job(tensor([[1, 2]])), job(tensor([[1, 2, 3, 4]]))]
        with pytest.raises(InternalError, match=r"input 'X' has shapes \[1, 2\] and \[1, 4\] in one batch"):
            BatchLayout(config()).gather(jobs)

    def test_an_absent_optional_input_is_not_forwarded(self) -> None:
        inputs = (ModelInput("X", FP32, (1,)), ModelInput("Z", FP32, (1,), optional=True))
        layout = BatchLayout(config(inputs, max_batch_size=0))
        assert set(layout.gather([job(tensor([1]))])[1]) == {"X"}
        assert set(layout.gather([job(tensor([1]), tensor([2], name="Z"))])[1]) == {"X", "Z"}


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        # Three requests of shapes [1, 3], [2, 2] and [1, 5]: 3, 4 and 5 elements.
        ("BATCH_ELEMENT_COUNT", [3, 4, 5]),
        ("BATCH_ACCUMULATED_ELEMENT_COUNT", [3, 7, 12]),
        ("BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO", [0, 3, 7, 12]),
        ("BATCH_MAX_ELEMENT_COUNT_AS_SHAPE", [0, 0, 0, 0, 0]),
        ("BATCH_ITEM_SHAPE", [[3], [2], [2], [5]]),
        ("BATCH_ITEM_SHAPE_FLATTEN", [3, 2, 2, 5]),
    ],
)
@pytest.mark.parametrize("datatype", [INT32, FP32])
def test_batch_inputs_have_the_values_and_shapes_of_the_specification(
    kind: str, expected: list, datatype: DataType
) -> None:
    layout = BatchLayout(
        config(
            (ModelInput("X", FP32, (-1,), allow_ragged_batch=True),),
            batch_input=(BatchInput(kind, ("INDEX", "AGAIN"), datatype, ("X",)),),
        )
    )
    jobs = [
        job(tensor([[1, 2, 3]])),
        job(tensor([[1, 2], [3, 4]]), rows=2),
        job(tensor([[1, 2, 3, 4, 5]])),
    ]
    _, inputs = layout.gather(jobs)
    assert set(inputs) == {"X", "INDEX", "AGAIN"}
    assert inputs["INDEX"].dtype == datatype.storage
    assert inputs["INDEX"].tolist() == expected
    assert inputs["AGAIN"].tolist() == expected


def test_batch_item_shape_has_a_column_for_each_dimension_but_the_batch() -> None:
    spec = BatchInput("BATCH_ITEM_SHAPE", ("S",), INT32, ("X",))
    layout = BatchLayout(
        config((ModelInput("X", FP32, (-1, -1), allow_ragged_batch=True),), batch_input=(spec,)),
    )
    jobs = [job(tensor(np.zeros((2, 3, 4))), rows=2), job(tensor(np.zeros((1, 5, 6))))]
    assert layout.gather(jobs)[1]["S"].tolist() == [[3, 4], [3, 4], [5, 6]]


class TestScatter:
    def test_every_job_gets_its_rows_as_views(self) -> None:
        batch = in_batch(job(rows=2), job(rows=1))
        output = np.arange(6, dtype=np.float32).reshape(3, 2)
        scatter(BatchLayout(config()), batch.jobs, [output])
        first, second = (response.output("Y") for response in responses(batch))
        assert (first.shape, first.array.tolist()) == ((2, 2), [[0, 1], [2, 3]])
        assert (second.shape, second.array.tolist()) == ((1, 2), [[4, 5]])
        assert bytes(second.buffer) == output[2:].tobytes()
        assert np.shares_memory(first.array, output)

    def test_a_framework_may_return_arrays_that_are_not_contiguous(self) -> None:
        batch = in_batch(job(), job())
        scatter(BatchLayout(config()), batch.jobs, [np.arange(4, dtype=np.float32).reshape(2, 2).T])
        assert [response.outputs[0].array.tolist() for response in responses(batch)] == [[[0, 2]], [[1, 3]]]

    def test_only_requested_outputs_are_returned_in_the_order_of_the_configuration(self) -> None:
        outputs = tuple(ModelOutput(name, UINT8, (1,)) for name in "ABC")
        batch = in_batch(job(), job(outputs=("C", "A")), job(outputs=("B",)))
        scatter(BatchLayout(config(outputs=outputs)), batch.jobs, [np.zeros((3, 1), np.uint8)] * 3)
        assert [[t.name for t in response.outputs] for response in responses(batch)] == [
            ["A", "B", "C"],
            ["A", "C"],
            ["B"],
        ]

    def test_bytes_outputs_are_cut_by_rows_too(self) -> None:
        batch = in_batch(job(rows=1), job(rows=2))
        output = np.array([["a", "é"], ["", "d"], ["e", "f"]], dtype=object)
        scatter(BatchLayout(config(outputs=(ModelOutput("Y", BYTES, (2,)),))), batch.jobs, [encode_text(output)])
        assert [response.outputs[0].array.tolist() for response in responses(batch)] == [
            [[b"a", "é".encode()]],
            [[b"", b"d"], [b"e", b"f"]],
        ]

    def test_surplus_rows_are_dropped(self) -> None:
        batch = in_batch(job())
        scatter(BatchLayout(config()), batch.jobs, [np.zeros((4, 2), np.float32)])
        assert responses(batch)[0].outputs[0].shape == (1, 2)

    @pytest.mark.parametrize(("output", "got"), [(np.zeros((2, 2), np.float32), 2), (np.float32(1).reshape(()), 0)])
    def test_jobs_for_which_there_are_no_rows_fail_the_others_do_not(self, output: np.ndarray, got: int) -> None:
        batch = in_batch(job(rows=1), job(rows=2, id_="late"))
        scatter(BatchLayout(config()), batch.jobs, [output])
        errors = {each.id: outcome for each, outcome, _ in batch.answers if isinstance(outcome, TriremeError)}
        assert isinstance(errors["late"], UnsupportedError)
        assert errors["late"].message == (
            "[request id: late] failed to split the output tensor 'Y' in responses: expected batch size of atleast 3 "
            f"in model output, got {got}"
        )
        assert ("" in errors) == (got == 0)

    @pytest.mark.parametrize(
        ("reshape", "dims", "produced", "expected"),
        [
            ((), (1,), (2,), (2, 1)),
            ((4,), (2, 2), (2, 4), (2, 2, 2)),
            ((-1, 4, -1), (2, -1, 2, -1), (2, 3, 4, 5), (2, 2, 3, 2, 5)),
        ],
    )
    def test_reshape_of_an_output_is_undone(self, reshape: Any, dims: Any, produced: Any, expected: Any) -> None:
        batch = in_batch(job(rows=2))
        layout = BatchLayout(config(outputs=(ModelOutput("Y", FP32, dims, reshape=reshape),)))
        scatter(layout, batch.jobs, [np.zeros(produced, np.float32)])
        assert responses(batch)[0].outputs[0].shape == expected

    def test_an_output_that_does_not_fit_its_reshape_is_an_error(self) -> None:
        layout = BatchLayout(config(outputs=(ModelOutput("Y", FP32, (2, 2), reshape=(4,)),)))
        with pytest.raises(
            InternalError, match=r"output 'Y' has shape \[5\].*promises the shape \[4\] of its 'reshape'"
        ):
            scatter(layout, in_batch(job()).jobs, [np.zeros((1, 5), np.float32)])

    def test_a_model_that_makes_another_number_of_outputs_answers_nothing(self) -> None:
        batch = in_batch(job())
        with pytest.raises(InternalError, match="made 2 outputs, expected 1"):
            scatter(BatchLayout(config()), batch.jobs, [np.zeros((1, 2), np.float32)] * 2)
        assert batch.answers == []

    @pytest.mark.parametrize(
        ("dims", "reshape", "produced", "expected"),
        [
            ((-1,), None, (7,), (7,)),
            ((2, 3), (6,), (6,), (2, 3)),
            ((1, 1), None, (), (1, 1)),
        ],
    )
    def test_without_batching_the_one_job_gets_it_all(
        self, dims: Any, reshape: Any, produced: Any, expected: Any
    ) -> None:
        batch = in_batch(job())
        layout = BatchLayout(config(outputs=(ModelOutput("Y", FP32, dims, reshape=reshape),), max_batch_size=0))
        output = np.ones(produced, np.float32)
        scatter(layout, batch.jobs, [output])
        (answer,) = responses(batch)[0].outputs
        assert answer.shape == expected
        assert np.shares_memory(answer.array, output)


class TestBatchOutput:
    def layout(self, *dims: int, source_dims: tuple[int, ...] = (-1,), max_batch_size: int = 8) -> BatchLayout:
        return BatchLayout(
            config(
                (ModelInput("X", FP32, source_dims, allow_ragged_batch=True),),
                (ModelOutput("Y", FP32, dims),),
                max_batch_size,
                batch_output=(BatchOutput("BATCH_SCATTER_WITH_INPUT_SHAPE", ("Y",), ("X",)),),
            )
        )

    def test_pieces_take_the_variable_sizes_of_the_source_input(self) -> None:
        batch = in_batch(job(tensor([[1, 2, 3]])), job(tensor([[4], [5]]), rows=2))
        scatter(self.layout(-1), batch.jobs, [np.arange(5, dtype=np.float32)])
        assert [response.outputs[0].array.tolist() for response in responses(batch)] == [[[0, 1, 2]], [[3], [4]]]

    def test_fixed_sizes_of_the_output_stay(self) -> None:
        batch = in_batch(job(tensor([[1, 2, 3]])), job(tensor([[4]])))
        scatter(self.layout(-1, 2), batch.jobs, [np.arange(8, dtype=np.float32)])
        assert [response.outputs[0].shape for response in responses(batch)] == [(1, 3, 2), (1, 1, 2)]

    def test_too_few_elements_are_an_error(self) -> None:
        batch = in_batch(job(tensor([[1, 2, 3]])))
        with pytest.raises(
            InternalError, match="output 'Y' has 2 elements, but the shapes of input 'X' in this batch need 3"
        ):
            scatter(self.layout(-1), batch.jobs, [np.zeros(2, np.float32)])

    def test_a_variable_dimension_without_counterpart_is_refused_at_load(self) -> None:
        with pytest.raises(InvalidArgumentError, match="batch output 'Y' of model 'm' has a variable dimension"):
            self.layout(2, -1)


@given(data=st.data(), datatype=st.sampled_from(DATATYPES), tail=st.lists(st.integers(0, 3), max_size=2))
def test_what_is_gathered_and_scattered_unchanged_comes_back_to_its_job(
    data: st.DataObject, datatype: DataType, tail: list[int]
) -> None:
    row_lists = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
    jobs: list[Job] = []
    counter = itertools.count()
    for rows in row_lists:
        shape = (rows, *tail)
        numbers = np.array([next(counter) for _ in range(int(np.prod(shape)))]).reshape(shape)
        values = np.vectorize(lambda n: str(n).encode(), otypes=[object])(numbers) if datatype is BYTES else numbers % 2
        jobs.append(job(tensor(values, datatype, wire=data.draw(st.booleans())), rows=rows))
    layout = BatchLayout(
        config((ModelInput("X", datatype, tuple(tail)),), (ModelOutput("Y", datatype, tuple(tail)),), 16)
    )
    batch = in_batch(*jobs)
    kept, inputs = layout.gather(batch.jobs)
    scatter(layout, kept, [inputs["X"]])
    for each, response in zip(jobs, responses(batch), strict=True):
        (output,) = response.outputs
        assert output.datatype is datatype
        assert output.shape == each.inputs["X"].shape
        assert bytes(output.buffer) == bytes(each.inputs["X"].buffer)
