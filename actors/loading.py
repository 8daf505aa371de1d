"""Loading a model version: everything that takes time, off the event loop
(docs/reference/model-configuration.md#where-it-comes-from)."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import rapidjson

from ..engine.backends.interface import LoadedModel
from ..engine.cancellation import Cancellation
from ..engine.config.build import config_json, config_text, with_runtime
from ..engine.config.ensemble import with_decoupled
from ..engine.config.instance_groups import leaves_kind_open
from ..engine.config.model import ModelConfig
from ..engine.config.sequence import sequence_batching
from ..engine.ensemble import EnsemblePlan
from ..engine.errors import InternalError, InvalidArgumentError, TriremeError
from ..engine.gpu.discovery import Gpus
from ..engine.gpu.load_guard import LoadGuard
from ..engine.instances.execution_limit import execution_limit_s
from ..engine.instances.orders import instance_orders
from ..engine.instances.restart import isolates_suspects
from ..engine.instances.warmup import WarmupSample, settling_samples, warmup_samples
from ..engine.repository.source import ModelSource
from ..engine.scheduling.core import SchedulerCore
from ..engine.scheduling.sequence.initial_state import state_layout
from .members import Member
from .surroundings import Surroundings

logger = logging.getLogger("trireme.repository")

Labels = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class LoadedInstances:
    """A model that a backend has loaded, for instances to execute.

    Attributes:
        core: decides what they execute.
        iterative: the model may have a request executed again instead of answering it.
        warmup: what its instances execute first.
        limit_s: most seconds that a batch may take; 0 for no limit.
        isolates: see `Instances`.
    """

    config: ModelConfig
    labels: Labels
    model: LoadedModel
    core: SchedulerCore
    iterative: bool = False
    warmup: tuple[WarmupSample, ...] = ()
    limit_s: float = 0.0
    isolates: bool = False


@dataclass(frozen=True, slots=True)
class LoadedEnsemble:
    """An ensemble whose members are there."""

    config: ModelConfig
    labels: Labels
    plan: EnsemblePlan


async def load(
    source: ModelSource, config: ModelConfig, version: int, surroundings: Surroundings, members: Sequence[Member] | None
) -> LoadedInstances | LoadedEnsemble:
    """Load one version on a thread. When this is cancelled the thread is not waited for; what a backend can end of what
    it waits for is ended.

    Args:
        members: the model of each step, loaded, if it is an ensemble.

    Raises:
        TriremeError: it cannot be loaded.
    """
    executors = surroundings.executors
    try:
        if members is not None:
            return await executors.offload(partial(load_ensemble, source, config, members))
        work = partial(load_instances, source, config, version, surroundings)
        return await executors.offload_cancellable(work, _close_unwanted)
    except TriremeError:
        raise
    except Exception as error:
        raise InternalError(f"{type(error).__name__}: {error}") from error


def _close_unwanted(loaded: LoadedInstances) -> None:
    try:
        loaded.model.close()
    except Exception:
        # A backend's code, on a thread that is not waited for.
        logger.exception("closing model '%s', whose load was given up, failed", loaded.config.name)


def load_instances(
    source: ModelSource, config: ModelConfig, version: int, surroundings: Surroundings, cancellation: Cancellation
) -> LoadedInstances:
    """Complete the configuration from the model's files, and have the backend load them.

    Args:
        cancellation: of the load, for what the backend can end.

    Raises:
        TriremeError: it cannot be loaded.
    """
    logger.info("TRITONBACKEND_ModelInitialize: %s (version %d)", config.name, version)
    files = source.files(version)
    backend = surroundings.backends.for_model(config, files)
    config = with_runtime(config, backend.runtime)
    gpus = gpus_for(config, surroundings)
    config = source.place(config, gpus)
    files = replace(files, capabilities=gpus.capabilities, cancellation=cancellation)
    completion = backend.auto_complete(config, files) if surroundings.options.auto_complete else None
    config = source.prepare(config, completion, gpus)
    _tell_completed(config, surroundings)
    limit_s = execution_limit_s(config.parameters, surroundings.options.hang_limit_s)
    isolates = isolates_suspects(config)
    labels = source.labels(config)
    sequences = sequence_batching(config)
    states = None
    if sequences is not None:
        on_gpu = all(group.kind == "KIND_GPU" for group in config.instance_group)
        states = state_layout(sequences.states, config.max_batch_size > 0, files.model_directory, on_gpu)
    warmup = warmup_samples(config, files.model_directory, states) + settling_samples(config, backend.settling_runs)
    core = surroundings.core_factory(config, states, surroundings.options.scheduler_delays)
    iterative = sequences is not None and sequences.iterative
    guard = LoadGuard(surroundings.options.gpu_limits, gpus)
    guard.check(order.spec for order in instance_orders(config, ()))
    model = guard.around(backend.load(config, files))
    return LoadedInstances(config, labels, model, core, iterative, warmup, limit_s, isolates)


def _tell_completed(config: ModelConfig, surroundings: Surroundings) -> None:
    """For verbose logs: what a configuration has become, and what its backend is told beyond the command line."""
    if not logger.isEnabledFor(logging.DEBUG):
        return
    if surroundings.options.auto_complete and config.message is not None:
        logger.debug("Server side auto-completed config: ", extra={"detail": config_text(config)})
    if "default-max-batch-size" not in surroundings.options.options_for_backend(config.backend):
        logger.debug("Adding default backend config setting: default-max-batch-size,4")
    if config.message is not None:
        text = rapidjson.dumps(rapidjson.loads(config_json(config)), indent=4, ensure_ascii=False)
        logger.debug("model configuration:\n%s", text)


def gpus_for(config: ModelConfig, surroundings: Surroundings) -> Gpus:
    """The GPUs that instances of a model may be on. Imports the backend's library, if that decides.

    Raises:
        TriremeError: there is no such backend, or its library is missing.
    """
    gpus = surroundings.gpus
    if not gpus.found or not leaves_kind_open(config.message):
        return gpus
    return replace(gpus, automatic=surroundings.backends.get(config.backend).uses_gpus())


def load_ensemble(source: ModelSource, config: ModelConfig, members: Sequence[Member]) -> LoadedEnsemble:
    """Connect the steps of an ensemble.

    Args:
        members: the model of each step, loaded.

    Raises:
        InvalidArgumentError: they do not go together.
    """
    config = source.prepare(config, None)
    plan = EnsemblePlan(config, [member.config for member in members])
    config = with_decoupled(config, plan.decoupled)
    _check_cache(config, members)
    if plan.max_inflight_requests:
        logger.info(
            "Ensemble model '%s' configured with max_inflight_requests: %d", config.name, plan.max_inflight_requests
        )
    labels = dict(source.labels(config))
    for output in config.output:
        made_by = plan.label_source(output.name)
        if output.name not in labels and made_by is not None:
            step, name = made_by
            inherited = members[step].labels.get(name)
            if inherited is not None:
                labels[output.name] = inherited
    return LoadedEnsemble(config, labels, plan)


def _check_cache(config: ModelConfig, members: Sequence[Member]) -> None:
    """What a model may not be that uses the response cache, an ensemble may not have among its members."""
    if not config.response_cache:
        return
    what = "'decoupled' transaction policy" if config.decoupled else "sequence batching scheduler"
    if config.decoupled or any(member.has_sequences for member in members):
        raise InvalidArgumentError(
            f"Response Cache does not currently support model {config.name} with {what}. Please disable the response "
            "cache."
        )
