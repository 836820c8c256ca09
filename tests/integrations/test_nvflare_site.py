"""A site's filters on the gate's policy, and the component that refuses jobs."""

import json

import numpy as np
import pytest

pytest.importorskip("nvflare")

from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.event_type import EventType
from nvflare.apis.filter import ContentBlockedException
from nvflare.apis.fl_constant import EventScope, FedEventHeader, FLContextKey, ReservedKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.fl_exception import UnsafeComponentError
from nvflare.apis.shareable import Shareable, make_reply

from glasshouse.cli.gate import Deed
from glasshouse.cli.gate import gate as command
from glasshouse.errors import BadFile, BadValue
from glasshouse.gate.log import create_key, read_public_key, verify
from glasshouse.gate.policy import parse_policy
from glasshouse.integrations.nvflare import launch
from glasshouse.integrations.nvflare import site as module
from glasshouse.integrations.nvflare.install import differences, planned
from glasshouse.integrations.nvflare.site import GateEvents, GateIn, GateJobs, GateOut

POLICY = """
format = 1
site = "ward-3"
dataset = "scans"
[out]
norm = 2.5
{more}
"""
POLICY_TABLE = {"format": 1, "site": "ward-3", "dataset": "scans", "out": {"norm": 2.5}}
STEPS = "NUM_STEPS_CURRENT_ROUND"


def base():
    return {"w": np.zeros((3, 4), np.float32), "n": np.array(7, np.int64)}


@pytest.fixture
def gate(tmp_path, monkeypatch):
    """The pair of filters of a fresh process, after a model arrived."""

    def opened(more=""):
        monkeypatch.setattr(module, "_DESKS", {})
        monkeypatch.setattr(module, "_RECEIVED", {})
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        path = folder / "gate.toml"
        path.write_text(POLICY.format(more=more))
        create_key(folder / "gate.ed25519")
        GateIn(str(path)).process(message(base(), round=0), context())
        return GateOut(str(path))

    return opened


def context(task="train"):
    ctx = FLContext()
    ctx.set_prop(FLContextKey.TASK_NAME, task)
    ctx.set_prop(ReservedKey.IDENTITY_NAME, "site-1")
    return ctx


def message(data, kind=DataKind.WEIGHTS, *, round=None, **meta):
    made = DXO(data_kind=kind, data=data, meta=meta).to_shareable()
    if round is not None:
        made.set_header("current_round", round)
    return made


def honest(value=0.1):
    return {**base(), "w": np.full((3, 4), value, np.float32)}


def last(gate):
    log = module.read_policy(module.Path(gate.policy))
    key = read_public_key(log.folder / "gate.ed25519.pub")
    return verify(log.folder / log.log.file, key).entries[-1]


def test_an_honest_update_leaves_as_a_new_message(gate):
    handed = message(honest(), **{STEPS: 4})
    handed.set_header("anything", "a row of data")
    sent = gate().process(handed, context())
    dxo = from_shareable(sent)
    assert sent is not handed
    assert sent.get_header("anything") is None
    assert (dxo.data_kind, dxo.meta) == (DataKind.WEIGHTS, {STEPS: 4})
    assert np.array_equal(dxo.data["w"], honest()["w"])


def test_a_change_is_judged_as_a_change(gate):
    change = {"w": np.full((3, 4), 0.1, np.float32), "n": np.array(0, np.int64)}
    sent = gate().process(message(change, DataKind.WEIGHT_DIFF, **{STEPS: 4}), context())
    assert from_shareable(sent).data_kind == DataKind.WEIGHT_DIFF


def test_the_order_of_tensors_and_numbers_is_not_the_scripts(gate):
    names = list(honest())
    turned = {name: honest()[name] for name in reversed(names)}
    assert list(turned) != names
    sent = from_shareable(gate().process(message(turned, **{STEPS: 4}), context()))
    assert list(sent.data) == names


def test_a_document_that_was_not_received_before_is_sent_behind_the_tensors():
    """A first tree answers no document: it has no place in the order of what was received."""
    arrays = {name: np.zeros(2, np.float32) for name in ("tree", "b", "a", "leaf")}
    allowed = module.Outgoing(kind="train", origin=module.Origin(run="1", node="site"), arrays=arrays)
    sent = module.encode(allowed, DataKind.WEIGHTS, order=("a", "b", "gone")).content
    assert list(from_shareable(sent).data) == ["a", "b", "leaf", "tree"]


def test_the_round_that_a_script_states_is_cut_short_in_the_log(gate):
    filters = gate()
    filters.process(message(honest(), round="a row of data " * 10**6, **{STEPS: 4}), context())
    assert len(last(filters)["round"]) < 30


def hostile():
    rng = np.random.default_rng(0)
    row = rng.normal(size=3072).astype(np.float32)
    extra, shape, wide, buffer, nan = honest(), honest(), honest(), honest(), honest()
    extra["row"] = row
    shape["w"] = row
    wide["w"] = honest()["w"].astype(np.float64)
    buffer["n"] = np.array(1234, np.int64)
    nan["w"][0, 0] = np.nan
    return {
        "norm": message(honest(100.0)),
        "extra_tensor": message(extra),
        "shape": message(shape),
        "dtype": message(wide),
        "buffer": message(buffer),
        "not_finite": message(nan),
        "unlisted": message(honest(), row=row),
        "examples": message(honest(), **{STEPS: 1.5}),
        "unreadable_kind": message({"trees": b"row"}, DataKind.STATISTICS),
    }


@pytest.mark.parametrize("rule", hostile())
def test_what_the_policy_forbids_does_not_leave(gate, rule):
    opened = gate()
    with pytest.raises(ContentBlockedException, match="did not send") as caught:
        opened.process(hostile()[rule], context())
    assert rule not in str(caught.value)
    entry = last(opened)
    assert rule in entry["rules"]
    assert entry["bytes_out"] == 0


def test_accuracy_in_clear_is_stripped_where_the_policy_strips(gate):
    handed = message(honest(), initial_metrics={"accuracy": 0.71}, secret="row", **{STEPS: 4})
    sent = from_shareable(gate('unlisted = "strip"').process(handed, context()))
    assert sent.meta == {STEPS: 4}


def test_a_shareable_without_a_dxo_does_not_leave(gate):
    with pytest.raises(ContentBlockedException):
        gate().process(Shareable({"row": [1.0] * 99}), context())


def test_a_failure_leaves_as_a_code_alone(gate):
    failed = make_reply(ReturnCode.EXECUTION_EXCEPTION, {"text": "a row of data"})
    failed["row"] = [1.0] * 99
    sent = gate().process(failed, context())
    assert sent.get_return_code() == ReturnCode.EXECUTION_EXCEPTION
    assert "row" not in str(dict(sent))


def test_an_answer_to_no_model_does_not_leave(gate, monkeypatch):
    opened = gate()
    module._RECEIVED.clear()
    with pytest.raises(ContentBlockedException):
        opened.process(message(honest()), context())
    assert last(opened)["rules"] == ["no_model_received"]


def test_a_model_that_is_not_finite_does_not_arrive(gate):
    opened = gate()
    with pytest.raises(ContentBlockedException):
        GateIn(opened.policy).process(message(honest(np.inf)), context())


def test_a_hundred_honest_updates_leave(gate):
    opened = gate()
    rng = np.random.default_rng(1)
    for _ in range(100):
        update = {**base(), "w": rng.normal(0, 0.2, (3, 4)).astype(np.float32)}
        assert from_shareable(opened.process(message(update, **{STEPS: 4}), context())).data


def built(config, place="executors.0.executor", **arguments):
    ctx = FLContext()
    ctx.set_prop(FLContextKey.COMPONENT_CONFIG, config, private=True, sticky=False)
    node = type("Node", (), {"path": lambda self: place})()
    ctx.set_prop(FLContextKey.COMPONENT_NODE, node, private=True, sticky=False)
    GateJobs(**arguments).handle_event(EventType.BEFORE_BUILD_COMPONENT, ctx)


EXECUTOR = "nvflare.app_common.executors.client_api_executor.ClientAPIExecutor"


def test_a_job_with_a_script_of_its_own_process_is_built():
    built({"path": EXECUTOR, "args": {"execution_mode": "external_process"}})


@pytest.mark.parametrize(
    ("config", "place", "words"),
    [
        ({"path": "mine.Late"}, "components.0", "not among those"),
        ({"path": "nvflare.app_common.widgets.convert_to_fed_event.ConvertToFedEvent"}, "", "not among"),
        ({"path": EXECUTOR}, "task_result_filters.0.filters.0", "after the site's"),
        ({"path": EXECUTOR, "args": {"execution_mode": "in_process"}}, "", "could replace"),
        ({"args": {}}, "", "without a path"),
        ("text", "", "without a class path"),
    ],
)
def test_a_job_that_could_go_around_the_filters_is_not(config, place, words):
    with pytest.raises(UnsafeComponentError, match=words):
        built(config, place)


def test_a_site_may_allow_scripts_in_the_process():
    built({"path": EXECUTOR, "args": {"execution_mode": "in_process"}}, in_process=True)


def permissions():
    lead = {"view": "any", "shell_commands": "o:site"}
    return {"format_version": "1.0", "permissions": {"project_admin": "any", "lead": lead}}


@pytest.fixture
def folder(tmp_path):
    local = tmp_path / "local"
    local.mkdir()
    launcher = "nvflare.app_common.job_launcher.client_process_launcher.ClientProcessJobLauncher"
    resources = {
        "format_version": 2,
        "allow_log_streaming": True,
        "components": [
            {"id": "gpu", "path": "nvflare.x.GPU"},
            {"id": "process_launcher", "path": launcher, "args": {}},
            {"id": "s", "path": "nvflare.app_common.logging.site_log_streamer.SiteLogStreamer"},
        ],
    }
    (local / "resources.json.default").write_text(json.dumps(resources))
    (local / "authorization.json.default").write_text(json.dumps(permissions()))
    (tmp_path / "gate.toml").write_text(POLICY.format(more=""))
    return tmp_path


def install(folder, **options):
    return command(Deed.install, folder, policy=folder / "gate.toml", kind="nvflare", **options)


def test_installing_closes_what_stood_open(folder, capsys):
    assert install(folder, compare=True) == 1
    assert install(folder) == 0
    assert install(folder, compare=True) == 0
    out = capsys.readouterr().out
    assert "grade B" in out
    assert "meet no result filter" in out
    resources = json.loads((folder / "local" / "resources.json").read_text())
    named = [one["id"] for one in resources["components"]]
    assert named == ["gpu", "glasshouse_gate_launcher", "glasshouse_gate_jobs"]
    assert resources["allow_log_streaming"] is False


def test_the_servers_console_reads_no_file_of_the_site(folder):
    assert install(folder) == 0
    rights = json.loads((folder / "local" / "authorization.json").read_text())["permissions"]
    assert rights["project_admin"]["shell_commands"] == "none"
    assert rights["project_admin"]["submit_job"] == "any"
    assert rights["lead"] == {"view": "any", "shell_commands": "none"}


def test_a_second_scope_is_a_difference(folder):
    assert install(folder) == 0
    path = folder / "local" / "privacy.json"
    table = json.loads(path.read_text())
    path.write_text(json.dumps({**table, "scopes": [*table["scopes"], {"name": "open"}]}))
    plan = planned(folder, folder / "gate.toml", in_process=False)
    assert differences(plan) == [path]


def test_scripts_in_the_process_are_grade_c(folder, capsys):
    assert install(folder, in_process=True) == 0
    assert "not a gate" in capsys.readouterr().out


def test_jobs_in_containers_are_not_started_by_this_gate(folder):
    path = folder / "local" / "resources.json"
    path.write_text(json.dumps({"components": [{"id": "l", "path": "nvflare.x.ClientDockerJobLauncher"}]}))
    with pytest.raises(BadFile, match="containers"):
        install(folder)


def test_a_folder_that_is_no_site_is_refused(tmp_path):
    (tmp_path / "gate.toml").write_text(POLICY.format(more=""))
    with pytest.raises(BadFile, match="startup/"):
        install(tmp_path)


def test_flowers_gate_is_run_and_flares_is_installed(folder):
    with pytest.raises(BadValue, match="gate run"):
        command(Deed.install, folder, policy=folder / "gate.toml")
    with pytest.raises(BadValue, match="gate install"):
        command(Deed.run, policy=folder / "gate.toml", kind="nvflare", to="here:1")
    with pytest.raises(BadValue, match="a site's folder"):
        command(Deed.install, policy=folder / "gate.toml", kind="nvflare")


def fired(policy, direction="out", scope=EventScope.FEDERATION):
    """An event with a row of data, after the site's component has seen it."""
    data = Shareable({"row": [1.0] * 99})
    data.set_header(FedEventHeader.DIRECTION, direction)
    ctx = context()
    ctx.set_prop(FLContextKey.EVENT_SCOPE, scope, private=True, sticky=False)
    ctx.set_prop(FLContextKey.EVENT_DATA, data, private=True, sticky=False)
    GateEvents(policy).handle_event("fed.analytix_log_stats", ctx)
    return data


def test_an_event_for_the_federation_stays(gate):
    opened = gate()
    data = fired(opened.policy)
    assert "row" not in data
    assert data.get_header(FedEventHeader.DIRECTION) == "in"  # FLARE's sender passes over these
    entry = last(opened)
    assert (entry["action"], entry["kind"], entry["bytes_out"]) == ("refused", "event", 0)
    assert "fed_event" in entry["rules"]


def test_events_of_the_server_and_of_the_process_are_left_alone(gate):
    opened = gate()
    assert "row" in fired(opened.policy, direction="in")
    assert "row" in fired(opened.policy, scope=EventScope.LOCAL)


# The site's launcher, which looks at a whole job before any of its code can run.

SCRIPT = {"execution_mode": "external_process", "command": ["python3", "-u", "custom/train.py", "--lr", "1"]}


def app(folder, *, client=None, config="config_fed_client.json"):
    """A job's folder at a site."""
    place = folder / "job" / "app_site-1"
    (place / "config").mkdir(parents=True)
    (place / "custom" / "nvflare_decomposers").mkdir(parents=True)
    (place / "custom" / "train.py").write_text("print('train')")
    executor = {"tasks": ["train"], "executor": {"path": EXECUTOR, "args": SCRIPT}}
    table = {"executors": [executor], "components": [], "task_result_filters": [], **(client or {})}
    (place / "config" / config).write_text(json.dumps(table))
    return place


def found(place, policy=None, meta=None, *, in_process=False):
    rules = module.read_policy(policy) if policy else parse_policy(POLICY_TABLE)
    reasons = launch.examine_job(
        place, meta or {}, rules, allow=launch.COMPONENTS, in_process=in_process,
        digest=launch.app_digest(place),
    )  # fmt: skip
    return [reason.rule for reason in reasons]


def test_an_honest_job_may_start_and_its_code_leaves_the_processs_path(tmp_path):
    place = app(tmp_path)
    assert found(place) == []
    launch.move_code(place)
    assert not (place / "custom").exists()
    assert (place / "uploaded" / "train.py").exists()
    (executor,) = json.loads((place / "config" / "config_fed_client.json").read_text())["executors"]
    assert executor["executor"]["args"]["command"] == ["python3", "-u", "uploaded/train.py", "--lr", "1"]


def test_a_command_in_one_text_is_pointed_to_the_code_too(tmp_path):
    text = {"tasks": ["train"], "executor": {"path": EXECUTOR, "args": {"command": "python3 custom/a.py x"}}}
    place = app(tmp_path, client={"executors": [text]})
    launch.move_code(place)
    assert "python3 uploaded/a.py x" in (place / "config" / "config_fed_client.json").read_text()


IN_PROCESS = {"tasks": ["train"], "executor": {"path": EXECUTOR, "args": {"execution_mode": "in_process"}}}
UNSAID = {"tasks": ["train"], "executor": {"path": EXECUTOR, "args": {"execution_mode": "{mode}"}}}


@pytest.mark.parametrize(
    ("client", "rule"),
    [
        ({"components": [{"path": "late.Handler"}]}, "job_component"),
        (
            {"task_result_filters": [{"tasks": ["train"], "filters": [{"path": "late.Filter"}]}]},
            "job_component",
        ),
        ({"executors": [IN_PROCESS]}, "job_component"),
        ({"executors": [UNSAID]}, "job_component"),
        ({"executors": [{"tasks": ["train"]}]}, "job_component"),
    ],
)
def test_a_job_that_could_act_in_the_filters_place_may_not(tmp_path, client, rule):
    assert found(app(tmp_path, client=client)) == [rule]


def test_a_configuration_in_another_format_is_not_overlooked(tmp_path):
    place = app(tmp_path)
    (place / "config" / "config_fed_client.conf").write_text("{}")
    assert found(place) == ["job_config"]
    assert found(app(tmp_path / "b", config="config_fed_client.yml")) == ["job_config"]


def test_links_and_other_scopes_are_refused(tmp_path):
    place = app(tmp_path)
    assert found(place, meta={"scope": "open"}) == ["scope"]
    (place / "custom" / "link.py").symlink_to("/etc/hostname")
    assert found(place) == ["job_files"]


def test_another_app_than_approved_is_refused_whatever_flare_adds(tmp_path):
    place = app(tmp_path)
    digest = launch.app_digest(place)
    (place / "custom" / ".__nvfl_sig.json").write_text("{}")
    assert launch.app_digest(place) == digest
    table = {**POLICY_TABLE, "apps": [f"sha256:{digest}"]}
    policy = parse_policy(table)
    arguments = {"allow": launch.COMPONENTS, "in_process": False}
    assert launch.examine_job(place, {}, policy, digest=digest, **arguments) == []
    (reason,) = launch.examine_job(place, {}, policy, digest="0" * 64, **arguments)
    assert reason.rule == "app"
