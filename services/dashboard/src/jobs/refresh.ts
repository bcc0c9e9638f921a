// What the live stream leaves out of a list is read again from time to time, and only while somebody looks at it.
import { useQueryClient } from "@tanstack/react-query";
import { useEffect, useRef } from "react";
import { jobsKey, type JobsFilter } from "../api/queries.ts";

const LIST_MS = 3000;

/** A function that has the list read again soon. Many calls in a short time are one reading. */
export function useReadingAgain(filter: JobsFilter): () => void {
  const queries = useQueryClient();
  const timer = useRef<ReturnType<typeof setTimeout> | undefined>(undefined);
  useEffect(
    () => () => {
      clearTimeout(timer.current);
      timer.current = undefined;
    },
    [filter],
  );
  const queryKey = jobsKey(filter);
  const readAgain = (): void => {
    timer.current ??= setTimeout(() => {
      timer.current = undefined;
      // An answer that is on its way may be older than the change, and the next page may be on its way: both end first.
      if (queries.isFetching({ queryKey }) > 0) readAgain();
      else void queries.invalidateQueries({ queryKey, refetchType: document.hidden ? "none" : "active" });
    }, LIST_MS);
  };
  return readAgain;
}
