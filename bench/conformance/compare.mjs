// Compares the checks of conformance runs with those of the first one, scenario by scenario.
//
//   compare.mjs SCENARIOS-FILE REFERENCE-DIR DIR...
//
// The reference must pass everything. Every other run must pass each check that the reference
// passed, and must have no failure or warning of its own. Checks of status INFO tell about the
// course of a run, not about its outcome, and are left out. Exits with 1 on any difference but those
// that are explained below.

import { existsSync, readFileSync, readdirSync } from "node:fs";
import { basename, join } from "node:path";

// Checks that the suite makes only if a server behaves in a way in which Mainstay does not.
const NOT_OFFERED = [
  {
    runs: /^(http|stdio)/,
    checks: /^server-sse-disconnect-resume$/,
    why: "Mainstay hangs up on no client, so there is no stream to take up again",
  },
  {
    runs: /^stdio/,
    checks: /^server-sse-(priming-event|retry-field)$/,
    why: "the answer comes as JSON before a stream is needed",
  },
];

const [scenariosFile, ...runs] = process.argv.slice(2);
const scenarios = readFileSync(scenariosFile, "utf8").split("\n").filter(Boolean);

/** The worst status of each check of a scenario; nothing if the suite left no result. */
function outcome(run, scenario) {
  const dir = join(run, scenario);
  const saved = existsSync(dir) ? readdirSync(dir) : [];
  if (saved.length !== 1) return undefined;
  const file = join(dir, saved[0], "checks.json");
  if (!existsSync(file)) return undefined;
  const severity = ["SUCCESS", "WARNING", "FAILURE"];
  const worst = new Map();
  for (const { id, status, errorMessage } of JSON.parse(readFileSync(file, "utf8"))) {
    if (!severity.includes(status)) continue;
    const known = worst.get(id);
    if (!known || severity.indexOf(status) > severity.indexOf(known.status)) {
      worst.set(id, { status, errorMessage });
    }
  }
  return worst;
}

function differences(reference, run, scenario) {
  const outcomes = outcome(run, scenario);
  if (!outcomes) return [`${scenario}: no result`];
  const bad = [...outcomes]
    .filter(([, { status }]) => status !== "SUCCESS")
    .map(([id, { status, errorMessage }]) => `${scenario}: ${id}: ${status}: ${errorMessage ?? ""}`);
  const missing = notChecked(reference, run, scenario)
    .filter((id) => !explanation(run, id))
    .map((id) => `${scenario}: ${id}: not checked`);
  return [...bad, ...missing];
}

/** The checks that were made of the reference and not of this run. */
function notChecked(reference, run, scenario) {
  const outcomes = outcome(run, scenario);
  return [...(outcome(reference, scenario)?.keys() ?? [])].filter((id) => !outcomes?.has(id));
}

function explanation(run, check) {
  return NOT_OFFERED.find(({ runs, checks }) => runs.test(basename(run)) && checks.test(check))?.why;
}

let failed = false;
for (const run of runs) {
  const found = scenarios.flatMap((scenario) => differences(runs[0], run, scenario));
  const checks = scenarios.flatMap((scenario) => [...(outcome(run, scenario)?.values() ?? [])]);
  const passed = checks.filter(({ status }) => status === "SUCCESS").length;
  console.log(
    `${basename(run).padEnd(24)} ${scenarios.length} scenarios, ${passed} of ${checks.length} checks passed`,
  );
  for (const difference of found) console.log(`  ${difference}`);
  for (const check of scenarios.flatMap((scenario) => notChecked(runs[0], run, scenario))) {
    const why = explanation(run, check);
    if (why) console.log(`  ${check} not offered: ${why}`);
  }
  failed ||= found.length > 0;
}
process.exit(failed ? 1 : 0);
