"""Reads the timeline of one request (GET /v1/requests/{id}); times there are microseconds since the
Unix epoch."""


class Timeline:
    def __init__(self, entry):
        self.attempt = entry["attempts"][-1]
        self.times = {**entry["times_us"], **self.attempt["times_us"]}
        self.landed = self.attempt["kv_landed"]
        self.bytes = self.attempt["kv_bytes"]

    def us(self, name):
        assert self.times.get(name), f"the timeline has no time of {name}: {self.times}"
        return self.times[name]

    @property
    def prefill_ms(self):
        return (self.us("prefill_end") - self.us("prefill_start")) / 1000

    @property
    def join_ms(self):
        return (self.us("joined") - self.us("prefill_end")) / 1000

    def first_byte_share(self):
        """The part of the prefill time that had passed when the first KV bytes had landed."""
        return (self.us("kv_first") - self.us("prefill_start")) / 1000 / self.prefill_ms

    def landed_share_at_prefill_end(self):
        end = self.us("prefill_end")
        if self.us("kv_last") <= end:
            return 1.0
        assert self.landed, f"the timeline does not say when bytes landed: {self.attempt}"
        return max((count for us, count in self.landed if us <= end), default=0) / self.bytes
