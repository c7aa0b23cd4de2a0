/** Numbers, times and sizes as people say them. */

/** Seconds as `41 s`, `3 min 20 s`, `2 h 05 min`, `3 d 4 h`. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined || Number.isNaN(seconds)) return "–";
  const s = Math.max(0, Math.round(seconds));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${String(s % 60).padStart(2, "0")} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${String(Math.floor((s % 3600) / 60)).padStart(2, "0")} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

/** Seconds as short as a scale needs them: `30 s`, `15 min`, `1:30 h`. */
export function tick(seconds) {
  const two = (number) => String(number).padStart(2, "0");
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)}${seconds % 60 ? `:${two(seconds % 60)}` : ""} min`;
  return `${Math.floor(seconds / 3600)}${seconds % 3600 ? `:${two(Math.floor((seconds % 3600) / 60))}` : ""} h`;
}

/** A time of day, with its date unless that is today. */
export function moment(seconds) {
  if (!seconds) return "–";
  const date = new Date(seconds * 1000);
  const today = date.toDateString() === new Date().toDateString();
  const time = date.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit" });
  return today ? time : `${date.toLocaleDateString([], { day: "numeric", month: "short" })}, ${time}`;
}

/** Bytes as GiB and the like. */
export function size(bytes) {
  if (bytes === null || bytes === undefined) return "–";
  let value = bytes;
  for (const unit of ["B", "KiB", "MiB"]) {
    if (value < 1024) return `${value.toFixed(0)} ${unit}`;
    value /= 1024;
  }
  return value < 1024 ? `${value.toFixed(1)} GiB` : `${(value / 1024).toFixed(2)} TiB`;
}

/** A measured value with four digits that matter. */
export function value(number) {
  if (number === null || number === undefined || !Number.isFinite(number)) return "–";
  const a = Math.abs(number);
  if (a !== 0 && (a < 0.001 || a >= 1e7)) return String(Number(number.toPrecision(4)).toExponential()).replace("e+", "e");
  return Number(number.toPrecision(4)).toLocaleString(undefined, { maximumSignificantDigits: 6 });
}

/** A count with its noun. */
export function count(number, one, many = `${one}s`) {
  return `${number.toLocaleString()} ${number === 1 ? one : many}`;
}

/** A slot as people call it: `GPU 1a2b3c4d` or `CPU 0`. */
export function slot(name) {
  if (!name) return "–";
  const gpu = /^gpu-(?:GPU-)?(.+)$/.exec(name);
  if (gpu) return `GPU ${gpu[1].slice(0, 8)}`;
  const cpu = /^cpu-(\d+)$/.exec(name);
  return cpu ? `CPU ${cpu[1]}` : name;
}

/** How a process ended. */
export function exit(rank) {
  if (rank.signal) return `ended by ${rank.signal}`;
  return rank.code === null || rank.code === undefined ? "" : `exited with status ${rank.code}`;
}
