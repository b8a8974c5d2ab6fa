"""A training script as users have them: no import of sweeper, and every way to end badly."""

import argparse
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

SLEEPER = [sys.executable, "-c", "import time; time.sleep(600)"]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=2**-7)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dir", type=Path, default=Path())
    parser.add_argument("--how", default="")
    parser.add_argument("--kind", choices=["plain", "good", "bad"], default="plain")
    parser.add_argument("--resume", action="store_true")
    args = parser.parse_args()
    state, once = args.dir / "state", args.dir / "once"
    first = int(state.read_text()) if args.resume else 0
    with (args.dir / "starts").open("a") as file:
        file.write(f"{first} {os.getpid()}\n")
    for step in range(first, args.steps):
        distance = math.log2(args.lr) + 7
        loss = 1 + 3 * math.exp(-3 * step / args.steps) + 0.05 * distance**2 * step / args.steps
        loss += 0.001 * args.seed - 0.01 * math.log2(args.width)
        loss += {"plain": 0.0, "good": -0.1, "bad": 0.1}[args.kind]
        behave(args, step)
        if args.how == "stale":
            row = {"step": step, "loss": 99 if not once.exists() and step == 9 else loss}
            with (args.dir / "own.jsonl").open("a") as file:
                file.write(f"{json.dumps(row)}\n")
        if args.how == "growing":
            loss = 4 + step**2 / 10
        if args.how == "leaves_out" and step > args.steps // 2:
            print(f"step {step}: 5 ms", flush=True)
            continue
        print(f"step {step}: loss {'nan' if distance > 2.5 and step > 4 else loss}", flush=True)
        state.write_text(str(step + 1))
        time.sleep(0.1 if args.how == "slow" and not Path("hurry").exists() else 0)


def behave(args: argparse.Namespace, step: int) -> None:
    """What `--how` asks for, in the middle of the run; what is to happen once, once."""
    once = args.dir / "once"
    if args.how == "preempt_jumping":
        attempts = len((args.dir / "starts").read_text().splitlines())
        if step == (5 if attempts % 2 else 9):
            sys.exit(75)
    if step != args.steps // 2 or not args.how:
        return
    match args.how:
        case "raise" | "growing":
            raise RuntimeError("out of luck")
        case "assert":
            loss = math.inf
            assert math.isfinite(loss)
        case "found_nan":
            raise RuntimeError("Rank 0, iteration 11: found NaN in local forward loss calculation")
        case "stops":
            print("Loss is nan, stopping training")
            sys.exit(0)
        case "scale":
            message = "Minimum loss scale reached (0.0001). Your loss is probably exploding."
            raise FloatingPointError(message)
        case "exit0":
            sys.exit(0)
        case "chatty":
            # Without a pause it would fill gigabytes of the disk.
            talk = "import time\nwhile True: print('y', flush=True); time.sleep(0.001)"
            subprocess.Popen([sys.executable, "-c", talk])
        case "preempt" | "preempt_always" | "stale":
            if args.how == "preempt_always" or not once.exists():
                once.touch()
                sys.exit(75)
        case "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "hang":
            time.sleep(600)
        case "children":
            with (args.dir / "children").open("w") as file:
                for session, env in ((False, None), (False, {}), (True, None), (True, {})):
                    child = subprocess.Popen(SLEEPER, start_new_session=session, env=env)
                    file.write(f"{child.pid}\n")
        case "deaf":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            (args.dir / "deaf").touch()
            time.sleep(600)
        case "flood":
            sys.stdout.write("x" * 6_000_000 + "\n" + "noise\n" * 200_000)
        case "folder":
            shutil.rmtree(args.dir)
            sys.exit(0)
        case "file":
            shutil.rmtree(args.dir)
            args.dir.write_text("x")
            sys.exit(0)
        case "pipe" | "log":
            (args.dir / "log.txt").unlink()
            os.mkfifo(args.dir / "log.txt") if args.how == "pipe" else None
            sys.exit(0)
        case "result":
            (args.dir / "result.json").mkdir()
        case "forks":
            children = args.dir / "children"
            code = "import os, time; [os._exit(0) if os.fork() else None for _ in range(2)]\n"
            code += "while True:\n if os.fork(): os._exit(0)\n"
            code += f" open({str(children)!r}, 'w').write(str(os.getpid())); time.sleep(0.005)"
            subprocess.Popen([sys.executable, "-c", code], start_new_session=True, env={})
            while not children.exists():
                time.sleep(0.01)
        case "secret":
            names = ("MY_TOKEN", "SUBMITIT_EXECUTOR", "SWEEPER_DIR")
            print("secret:", *(os.environ.get(name) for name in names))


if __name__ == "__main__":
    main()
