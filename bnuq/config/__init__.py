"""The request: the settings of an evaluation, from options and a run file, checked key by key and resolved.

An option overrides the run file, the run file overrides the checkpoint's record, and that overrides the default.
"""

from bnuq.config.effects import data_without_effect, typed
from bnuq.config.live import resolve_live
from bnuq.config.request import (
    DEFAULT_BATCH_SIZE,
    DEFAULT_SAMPLER,
    DrawSettings,
    Named,
    Options,
    PointSettings,
    Run,
    RunOfSeveral,
    Runs,
    ScoreSettings,
)
from bnuq.config.resolving import (
    SWEEP_SAMPLES,
    only_network,
    resolve,
    resolve_again,
    resolve_checkpoint,
    resolve_ensemble,
    resolve_sweep,
)
from bnuq.config.runfile import read_run_file, section_from
from bnuq.config.schema import (
    Augment,
    Calibration,
    CertificateSection,
    ChannelOrder,
    CheckSection,
    Counts,
    GateSection,
    InspectSection,
    Interpolation,
    Jitter,
    MonitorSection,
    Normalize,
    PopulationEstimator,
    PreciseBnSection,
    SamplerSettings,
    Samples,
    SamplingSection,
    ScoreSection,
    ScoringSection,
    SizeCriterion,
    Split,
    SweepSection,
)
from bnuq.config.several_runs import resolve_all, resolve_all_again
