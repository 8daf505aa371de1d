"""Loading a model version, on a thread (docs/reference/model-configuration.md#where-it-comes-from)."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

import rapidjson

from ..backends.interface import InstanceSpec, LoadedModel, ModelFiles, ModelInstance
from ..backends.registry import BackendRegistry
from ..cancellation import Cancellation
from ..config.chat import ChatTemplate
from ..config.ensemble import with_decoupled
from ..config.instance_groups import leaves_kind_open
from ..config.json_text import config_json
from ..config.model import ModelConfig, config_text, with_runtime
from ..config.objective import latency_objective_s
from ..config.sequence import sequence_batching
from ..ensemble import EnsemblePlan
from ..errors import InvalidArgumentError
from ..gpu.discovery import NO_GPUS, Gpus, LoadGuard
from ..host_policies import ANYWHERE, HostPolicy
from ..instances.executing import execution_limit_s
from ..instances.orders import first_instance, instance_orders
from ..instances.restart import isolates_suspects
from ..instances.warmup import WarmupSample, settling_samples, warmup_samples
from ..options import ServerOptions
from ..scheduling.core import SchedulerCore
from ..scheduling.factory import CoreFactory, make_scheduler
from ..scheduling.sequence.initial_state import state_layout
from ..scheduling.strategy import LIBRARY, PARAMETER
from .source import ModelSource

logger = logging.getLogger("trireme.repository")

Labels = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadContext:
    """What loading needs of a server.

    Attributes:
        core_factory: makes the scheduler cores of models that have instances.
    """

    options: ServerOptions
    backends: BackendRegistry
    gpus: Gpus = NO_GPUS
    core_factory: CoreFactory = make_scheduler


class LoadedMember(Protocol):
    """What an ensemble is made of: a model that is loaded."""

    config: ModelConfig
    labels: Labels

    @property
    def has_sequences(self) -> bool:
        """Its answers depend on requests before."""
        ...


@dataclass(frozen=True, slots=True)
class LoadedInstances:
    """A model that a backend has loaded, for instances to execute.

    Attributes:
        guard: refuses instances on a GPU that has no room for them.
        core: decides what they execute.
        iterative: the model may have a request executed again instead of answering it.
        warmup: what its instances execute first.
        limit_s: most seconds that a batch may take; 0 for no limit.
        isolates: requests may be executed again when a process is lost.
        policies: where instances run, by the names of their policies.
        chat: see `ModelDescription`.
    """

    config: ModelConfig
    labels: Labels
    model: LoadedModel
    guard: LoadGuard
    core: SchedulerCore
    iterative: bool = False
    warmup: tuple[WarmupSample, ...] = ()
    limit_s: float = 0.0
    isolates: bool = False
    policies: Mapping[str, HostPolicy] = field(default_factory=dict)
    chat: ChatTemplate | None = None

    def new_instance(self, spec: InstanceSpec, *, on_its_thread: bool = True) -> ModelInstance:
        """Make an instance, and bind it to its host policy.

        Args:
            on_its_thread: the calling thread is that of the instance.

        Raises:
            TriremeError: see `LoadedModel.create_instance` and `HostPolicy.bind`; its GPU is full.
        """
        self.guard.check((spec,))
        policy = self.policies.get(spec.policy_name, ANYWHERE)
        if not on_its_thread:
            return policy.run(partial(self.model.create_instance, spec))
        policy.bind()
        instance = self.model.create_instance(spec)
        if policy:
            instance.thread_bound = True  # no other thread is bound
        return instance


@dataclass(frozen=True, slots=True)
class LoadedEnsemble:
    """An ensemble whose members are there."""

    config: ModelConfig
    labels: Labels
    plan: EnsemblePlan


def load_instances(
    source: ModelSource, config: ModelConfig, version: int, context: LoadContext, cancellation: Cancellation
) -> LoadedInstances:
    """Complete the configuration from the model's files, and have the backend load them.

    Args:
        cancellation: of the load, for what the backend can end.

    Raises:
        TriremeError: it cannot be loaded.
    """
    logger.info("TRITONBACKEND_ModelInitialize: %s (version %d)", config.name, version)
    files = source.files(version)
    backend = context.backends.for_model(config, files)
    config = with_runtime(config, backend.runtime)
    gpus = gpus_for(config, context)
    config = source.place(config, gpus)
    files = replace(files, capabilities=gpus.capabilities, cancellation=cancellation)
    completion = backend.auto_complete(config, files) if context.options.auto_complete else None
    config = source.prepare(config, completion, gpus)
    _tell_completed(config, context)
    limit_s = execution_limit_s(config.parameters, context.options.hang_limit_s)
    isolates = isolates_suspects(config)
    labels = source.labels(config)
    chat = source.chat_template(version, config)
    sequences = sequence_batching(config)
    states = None
    if sequences is not None:
        on_gpu = all(group.kind == "KIND_GPU" for group in config.instance_group)
        states = state_layout(sequences.states, config.max_batch_size > 0, files.model_directory, on_gpu)
    warmup = warmup_samples(config, files.model_directory, states) + settling_samples(config, backend.settling_runs)
    core = context.core_factory(config, states, context.options.scheduler_delays)
    iterative = sequences is not None and sequences.iterative
    guard = LoadGuard(context.options.gpu_limits, gpus)
    guard.check(order.spec for order in instance_orders(config, ()))
    warn_of_library(config, files)
    policies = context.options.host_policies
    policy = policies.get(first_instance(config).policy_name, ANYWHERE)
    if policy.cores and backend.shares_threads:
        text = "model '%s': the threads that the backend '%s' shares among instances are bound to no cores"
        logger.warning(text, config.name, config.backend)
    model = policy.run(partial(backend.load, config, files))  # which may make the first instance's program
    return LoadedInstances(config, labels, model, guard, core, iterative, warmup, limit_s, isolates, policies, chat)


def warn_of_library(config: ModelConfig, files: ModelFiles) -> None:
    """Log that a library which batches in tritonserver does not here, if there is one and nothing in its place."""
    if PARAMETER not in config.parameters and config.dynamic_batching is not None:
        for folder in (files.version_directory, files.model_directory):
            if (folder / LIBRARY).is_file():
                text = "model '%s': %s has no effect: batching strategies are Python classes (parameter '%s')"
                logger.warning(text, config.name, LIBRARY, PARAMETER)
                return


def _tell_completed(config: ModelConfig, context: LoadContext) -> None:
    """For verbose logs: what a configuration has become, and what its backend is told beyond the command line."""
    if not logger.isEnabledFor(logging.DEBUG):
        return
    if context.options.auto_complete and config.message is not None:
        logger.debug("Server side auto-completed config: ", extra={"detail": config_text(config)})
    if "default-max-batch-size" not in context.options.options_for_backend(config.backend):
        logger.debug("Adding default backend config setting: default-max-batch-size,4")
    if config.message is not None:
        text = rapidjson.dumps(rapidjson.loads(config_json(config)), indent=4, ensure_ascii=False)
        logger.debug("model configuration:\n%s", text)


def gpus_for(config: ModelConfig, context: LoadContext) -> Gpus:
    """The GPUs that instances of a model may be on. Imports the backend's library, if that decides.

    Raises:
        TriremeError: there is no such backend, or its library is missing.
    """
    gpus = context.gpus
    if not gpus.found or not leaves_kind_open(config.message):
        return gpus
    return replace(gpus, automatic=context.backends.get(config.backend).uses_gpus())


def load_ensemble(source: ModelSource, config: ModelConfig, members: Sequence[LoadedMember]) -> LoadedEnsemble:
    """Connect the steps of an ensemble.

    Args:
        members: the model of each step, loaded.

    Raises:
        InvalidArgumentError: they do not go together.
    """
    config = source.prepare(config, None)
    latency_objective_s(config)  # raises if it has one: an ensemble has no batches
    plan = EnsemblePlan(config, [member.config for member in members])
    config = with_decoupled(config, plan.decoupled)
    _check_cache(config, members)
    if plan.max_inflight_requests:
        logger.info(
            "Ensemble model '%s' configured with max_inflight_requests: %d", config.name, plan.max_inflight_requests
        )
    labels = dict(source.labels(config))
    for output in config.output:
        made_by = plan.producers.get(output.name)
        if output.name not in labels and made_by is not None:
            step, name = made_by
            if name in members[step].labels:
                labels[output.name] = members[step].labels[name]
    return LoadedEnsemble(config, labels, plan)


def _check_cache(config: ModelConfig, members: Sequence[LoadedMember]) -> None:
    """What a model may not be that uses the response cache, an ensemble may not have among its members."""
    if not config.response_cache:
        return
    what = "'decoupled' transaction policy" if config.decoupled else "sequence batching scheduler"
    if config.decoupled or any(member.has_sequences for member in members):
        raise InvalidArgumentError(
            f"Response Cache does not currently support model {config.name} with {what}. Please disable the response "
            "cache."
        )
