import os

from tests import test_pretended_device as T
from tests.pretended import on_pretended
from tests.stories.tiny import EVALUATION, make_workspace


def timed(w, cmds):
    out = []
    for c in cmds:
        a = os.times()
        o = T.commands(w, c)
        b = os.times()
        out.append(
            (
                c[0],
                o[0].code,
                "own %.2f children %.2f wall %.1f"
                % (
                    b.user + b.system - a.user - a.system,
                    b.children_user + b.children_system - a.children_user - a.children_system,
                    b.elapsed - a.elapsed,
                ),
            )
        )
    return out


def test_run(tmp_path):
    w = make_workspace(tmp_path)
    audit = ("audit.canaries=8", "audit.canary_words=4", "audit.white_box=true")
    words = ("train", *T.GIVEN, *audit, "train.checkpoint_every=1")
    (w.root / "prompts.jsonl").write_text('{"meaning_representation": "name[Inn]"}\n')
    device = "train.device=accelerator"
    on_pretended(T.killed, w, [*words, "hydra.run.dir=run"], dies=True)
    for l in on_pretended(
        timed,
        w,
        (
            ["train", "resume=run"],
            ["eval", "run=run", device, "hydra.run.dir=scores", *EVALUATION],
            [
                "generate",
                "run=run",
                device,
                "prompts=prompts.jsonl",
                "to=out.jsonl",
                *EVALUATION[1:],
            ],
            ["audit", "run=run", device, "audit=one_run", "output=json"],
        ),
        limit=200.0,
    ):
        print(l)
